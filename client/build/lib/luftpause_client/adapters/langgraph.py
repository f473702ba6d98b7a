"""A LangGraph node that interrupts its graph before a model call that does not fit. langgraph is imported when a node
is wrapped; it keeps the graph's state, the session keeps what was spent."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from luftpause_client.adapters.answers import count
from luftpause_client.errors import NotNowError
from luftpause_client.session import Session

N = TypeVar("N", bound=Callable[..., Any])


def suspending(run: Session[Any], node: N) -> N:
    """`node`, which makes one model call, guarded: where it does not fit, or a rate limit refuses it, the graph is
    interrupted with the outlook as a dict, and goes on with the node when it is resumed (`Command(resume=True)`). The
    graph needs a checkpointer. Tokens are read from the `usage_metadata` of the messages that the node returns.

    TypeError for an async node; ImportError without langgraph.
    """
    if inspect.iscoroutinefunction(node):
        raise TypeError("node: expected a plain function, got an async one")
    interrupt = importlib.import_module("langgraph.types").interrupt

    @functools.wraps(node)
    def guarded(state: object) -> Any:
        while True:
            try:
                with run.reserved(messages_in(state)) as reservation:
                    update = node(state)
                    tokens_used = sum(_tokens(message) for message in messages_in(update))
                    if tokens_used:
                        reservation.settle(tokens_used)
                    return update
            except NotNowError as refusal:
                outlook = refusal.outlook
            # Resumed, the node begins again: this then returns, and the outlook is asked for anew.
            interrupt({**dataclasses.asdict(outlook), "action": str(outlook.action)})

    return cast(N, guarded)


def messages_in(state: object) -> list[Any]:
    """The messages of a graph's state or update; none where it has none."""
    found = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def _tokens(message: object) -> int:
    usage = getattr(message, "usage_metadata", None)
    return usage.get("total_tokens", 0) if isinstance(usage, Mapping) else count(usage, "total_tokens")
