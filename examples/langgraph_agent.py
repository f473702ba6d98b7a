"""An agent of LangGraph: class and caller are headers of the model, the run id is told with each turn.

BASE_URL (http://127.0.0.1:8080/v1), MODEL (the first one listed), LUFTPAUSE_TOKEN (where the services want one),
FORCE_TOOL_CALL=1 makes the first turn call the tool, also with a model that would not.
"""

import os
import uuid
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import OpenAI
from pydantic import SecretStr

HANDBOOK = " ".join(f"Rule {n}: garden bed {n} is watered in the evening, and weeds are pulled." for n in range(1, 31))
QUESTIONS = ["Do the beans need water?", "And the roses?"]


@tool
def moisture(bed: Literal["roses", "beans", "herbs"]) -> str:
    """How moist the soil of a garden bed is."""
    return {"roses": "dry", "beans": "moist", "herbs": "wet"}[bed]


def main() -> None:
    """Asks two questions in one run; for each, the graph goes round between model and tool until the model answers."""
    os.environ["LANGSMITH_TRACING"] = "false"  # traces would go to LangSmith
    base_url = os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1")
    token = os.environ.get("LUFTPAUSE_TOKEN") or "none"
    headers = {"x-luftpause-class": "interactive", "x-luftpause-caller": "examples"}
    client = OpenAI(base_url=base_url, api_key=token, default_headers=headers)
    name = os.environ.get("MODEL") or client.models.list().data[0].id
    run_id = f"garden-{uuid.uuid4()}"
    model = ChatOpenAI(
        base_url=base_url, api_key=SecretStr(token), model=name, default_headers=headers, max_completion_tokens=512
    )
    may_call = model.bind_tools([moisture], strict=True)
    must_call = model.bind_tools([moisture], strict=True, tool_choice="required")

    def turn(state: MessagesState) -> MessagesState:
        is_first = not any(isinstance(message, AIMessage) for message in state["messages"])
        chosen = must_call if is_first and os.environ.get("FORCE_TOOL_CALL") == "1" else may_call
        reply = chosen.invoke(state["messages"], extra_headers={"x-luftpause-run-id": run_id})
        cached = 0
        if reply.usage_metadata and "input_token_details" in reply.usage_metadata:
            cached = reply.usage_metadata["input_token_details"].get("cache_read", 0)
        print(f"turn of run {run_id}: cached_tokens {cached}, {len(reply.tool_calls)} tool calls")
        return {"messages": [reply]}

    graph = StateGraph(MessagesState)
    graph.add_node("turn", turn)
    graph.add_node("tools", ToolNode([moisture]))
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", tools_condition)
    graph.add_edge("tools", "turn")
    print(f"run {run_id}, model {name}")
    agent = graph.compile()
    state = MessagesState(messages=[SystemMessage(f"You keep the garden of {run_id}. {HANDBOOK}")])
    for question in QUESTIONS:
        state["messages"].append(HumanMessage(question))
        state = MessagesState(messages=agent.invoke(state, {"recursion_limit": 9})["messages"])
        print(f"answer: {state['messages'][-1].text[:200]!r}")
    client.delete(f"/runs/{run_id}", cast_to=object)
    print("run ended")


if __name__ == "__main__":
    main()
