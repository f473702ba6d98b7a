"""An agent of the OpenAI Agents SDK: class and caller are the client's headers, the run id is set for each run.

BASE_URL (http://127.0.0.1:8080/v1), MODEL (the first one listed), LUFTPAUSE_TOKEN (where the services want one),
FORCE_TOOL_CALL=1 makes the first turn call the tool, also with a model that would not.
"""

import asyncio
import os
import uuid
from typing import Literal

from agents import (
    Agent,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    TResponseInputItem,
    function_tool,
)
from openai import AsyncOpenAI

HANDBOOK = " ".join(f"Rule {n}: train {n} leaves on time, and its platform is announced early." for n in range(1, 31))
QUESTIONS = ["Where does the coast train leave?", "And the one to the north?"]


@function_tool
def platform(train: Literal["north", "south", "coast"]) -> str:
    """The platform that a train leaves from."""
    return {"north": "1", "south": "4", "coast": "7b"}[train]


class Turns(RunHooks[None]):
    """Prints every turn as it ends."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    async def on_llm_end(self, _context: RunContextWrapper[None], _agent: Agent[None], response: ModelResponse) -> None:
        calls = [item for item in response.output if item.type == "function_call"]
        cached = response.usage.input_tokens_details.cached_tokens
        print(f"turn of run {self.run_id}: cached_tokens {cached}, {len(calls)} tool calls")


async def main() -> None:
    """Asks two questions in one run."""
    client = AsyncOpenAI(
        base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("LUFTPAUSE_TOKEN") or "none",
        default_headers={"x-luftpause-class": "interactive", "x-luftpause-caller": "examples"},
    )
    model = os.environ.get("MODEL") or (await client.models.list()).data[0].id
    run_id = f"station-{uuid.uuid4()}"
    agent = Agent[None](
        name="Station",
        instructions=f"You work at the station of {run_id}. {HANDBOOK}",
        tools=[platform],
        model=OpenAIChatCompletionsModel(model, client),
        # The SDK lets the model choose again after the first call.
        model_settings=ModelSettings(
            max_tokens=512, tool_choice="required" if os.environ.get("FORCE_TOOL_CALL") == "1" else "auto"
        ),
    )
    config = RunConfig(
        tracing_disabled=True,  # traces would go to api.openai.com
        model_settings=ModelSettings(extra_headers={"x-luftpause-run-id": run_id}),
    )
    print(f"run {run_id}, model {model}")
    conversation: list[TResponseInputItem] = []
    for question in QUESTIONS:
        conversation.append({"role": "user", "content": question})
        result = await Runner.run(agent, conversation, hooks=Turns(run_id), run_config=config, max_turns=4)
        conversation = result.to_input_list()
        print(f"answer: {result.final_output[:200]!r}")
    await client.delete(f"/runs/{run_id}", cast_to=object)
    print("run ended")


if __name__ == "__main__":
    asyncio.run(main())
