"""An agent that knows nothing of luftpause: a plain openai client. Its turns are still known as one run, since the
second request carries the id of a tool call that the first reply contained.

    BASE_URL (http://127.0.0.1:8080/v1), MODEL (the first one listed), LUFTPAUSE_TOKEN (where the services want one)
"""

import os
import sys
import uuid
from typing import Literal

from openai import OpenAI
from openai.types.chat import (
    ChatCompletionMessage,
    ChatCompletionMessageParam,
    ChatCompletionMessageToolCallUnionParam,
    ChatCompletionToolUnionParam,
)

CLOCK: ChatCompletionToolUnionParam = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Berlin", "Lima", "Tokyo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
HANDBOOK = " ".join(f"Rule {n}: who asks for time zone {n} wants hours and minutes." for n in range(1, 31))
ATTEMPTS = 10


def main() -> None:
    """A turn that calls the tool, and the turn that gets its result; exit code 1 if they are not one run."""
    token = os.environ.get("LUFTPAUSE_TOKEN") or "none"
    client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1"), api_key=token)
    model = os.environ.get("MODEL") or client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": f"You answer letter {uuid.uuid4()}. {HANDBOOK}"},
        {"role": "user", "content": "What time is it in Lima?"},
    ]

    def turn(tool_choice: Literal["required", "none"]) -> tuple[str, ChatCompletionMessage]:
        answer = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=[CLOCK], tool_choice=tool_choice, max_tokens=512
        )
        reply = answer.parse()
        run_id = answer.headers.get("x-luftpause-run-id")
        if run_id is None:
            sys.exit(f"no x-luftpause-run-id in the answer of {client.base_url}")
        details = reply.usage.prompt_tokens_details if reply.usage else None
        print(f"turn of run {run_id}: cached_tokens {(details and details.cached_tokens) or 0}")
        return run_id, reply.choices[0].message

    # max_tokens may cut a call before it is one; then another reply is asked for, which is another run.
    for _ in range(ATTEMPTS):
        first_run, message = turn("required")
        if message.tool_calls:
            break
    else:
        sys.exit(f"no tool call in {ATTEMPTS} replies")
    told: list[ChatCompletionMessageToolCallUnionParam] = []
    results: list[ChatCompletionMessageParam] = []
    for call in message.tool_calls:
        told.append({"id": call.id, "type": "function", "function": {"name": "clock", "arguments": '{"city": "Lima"}'}})
        results.append({"role": "tool", "tool_call_id": call.id, "content": "09:41"})
    messages += [{"role": "assistant", "content": message.content, "tool_calls": told}, *results]
    second_run, message = turn("none")
    print(f"answer: {(message.content or '')[:200]!r}")
    print("the same run" if first_run == second_run else "two runs")
    sys.exit(first_run != second_run)


if __name__ == "__main__":
    main()
