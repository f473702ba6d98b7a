"""An agent that keeps its own loop, with the openai client: three headers tell luftpause which run a turn belongs to,
whether somebody waits for it, and who asks.

    BASE_URL (http://127.0.0.1:8080/v1), MODEL (the first one listed), LUFTPAUSE_TOKEN (where the services want one),
    FORCE_TOOL_CALL=1 makes the first turn call the tool, also with a model that would not.
"""

import json
import os
import uuid

from openai import OpenAI
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionMessageToolCallUnionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.chat.chat_completion_message_function_tool_call_param import Function

STOCK = {"apples": 12, "bread": 0, "coffee": 230}
HANDBOOK = " ".join(f"Rule {n}: shelf {n} is counted every morning, and what is low is ordered." for n in range(1, 31))
TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {
            "name": "stock",
            "description": "How many pieces of a product are there.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"product": {"type": "string", "enum": list(STOCK)}},
                "required": ["product"],
                "additionalProperties": False,
            },
        },
    }
]


QUESTIONS = ["How much coffee is there?", "And is there any bread?"]


def arguments_of(text: str) -> dict[str, object]:
    """The arguments of a call; none where max_tokens has cut them, since engines refuse messages with half a JSON."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def stock(product: object = None) -> str:
    """The tool. A model may ask for anything."""
    return str(STOCK[product]) if product in STOCK else f"Error: product must be one of {', '.join(STOCK)}"


def main() -> None:
    """Asks two questions and answers the model's tool calls, at most three for each."""
    token = os.environ.get("LUFTPAUSE_TOKEN") or "none"
    client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1"), api_key=token)
    model = os.environ.get("MODEL") or client.models.list().data[0].id
    run_id = f"shop-{uuid.uuid4()}"
    headers = {"x-luftpause-run-id": run_id, "x-luftpause-class": "interactive", "x-luftpause-caller": "examples"}
    must_call = os.environ.get("FORCE_TOOL_CALL") == "1"
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": f"You keep the shop of {run_id}. {HANDBOOK}"}
    ]
    print(f"run {run_id}, model {model}")
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        for _ in range(4):
            answer = client.chat.completions.with_raw_response.create(
                model=model,
                messages=messages,
                tools=TOOLS,
                tool_choice="required" if must_call else "auto",
                max_tokens=512,
                extra_headers=headers,
            )
            must_call = False
            reply = answer.parse()
            message = reply.choices[0].message
            details = reply.usage.prompt_tokens_details if reply.usage else None
            cached = (details and details.cached_tokens) or 0
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            run = answer.headers.get("x-luftpause-run-id")
            print(f"turn of run {run}: cached_tokens {cached}, {len(calls)} tool calls")
            if not calls:
                messages.append({"role": "assistant", "content": message.content or ""})
                print(f"answer: {(message.content or '')[:200]!r}")
                break
            told: list[ChatCompletionMessageToolCallUnionParam] = []
            results: list[ChatCompletionMessageParam] = []
            for call in calls:
                arguments = arguments_of(call.function.arguments)
                function: Function = {"name": call.function.name, "arguments": json.dumps(arguments)}
                told.append({"id": call.id, "type": "function", "function": function})
                result = stock(arguments.get("product"))
                print(f"tool: stock({arguments}) is {result}")
                results.append({"role": "tool", "tool_call_id": call.id, "content": result})
            messages += [{"role": "assistant", "content": message.content, "tool_calls": told}, *results]
    client.delete(f"/runs/{run_id}", cast_to=object, options={"headers": headers})
    print("run ended")


if __name__ == "__main__":
    main()
