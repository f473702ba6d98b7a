"""The texts by which a model knows the MCP tools and their arguments. Pure."""

from __future__ import annotations

INSTRUCTIONS = (
    "Runs sub-agents that outlive this connection. `spawn` starts one and returns its handle at once; `await` waits for"
    " several together; `run` does both for one. Spawn independent tasks first and await them together: they run at the"
    " same time. A sub-agent sees only its task and system text, so say in them all that it needs to know."
)

DESCRIPTIONS = {
    "spawn": (
        "Starts a sub-agent on a task and returns its handle at once, without waiting. The sub-agent calls tools by"
        " itself until it answers, and goes on even if this connection ends. Collect the answer with `await`."
    ),
    "await": (
        "Waits until sub-agents end, all of them or any, and returns for each its state, its answer or error, how many"
        " tools it called and what it used of its budget. Where the time is over first, it says which are still"
        " running; call it again to go on waiting. It only observes: nothing is stopped by it, and answers can be read"
        " again."
    ),
    "run": (
        "Starts a sub-agent and waits for its answer, up to 55 seconds. If it takes longer, the result has the handle"
        " and says that it is still running: go on with `await`. For several tasks at once, use `spawn` and `await`."
    ),
    "status": (
        "Shows sub-agents without waiting: with a handle that one, its parent and all below it, else all that have not"
        " ended. Each has its state, its own usage and that of everything below it."
    ),
    "cancel": (
        "Ends a sub-agent and everything spawned below it, at once. Tool calls that are in progress may still take"
        " effect. Returns the handles of what was ended; an empty list if nothing was running."
    ),
    "approve": (
        "Answers a sub-agent in the state AwaitingApproval: whether the tool call in its pendingApproval may be made."
        " Where pendingApproval has outcomeUnknown, it is asked whether the call is to be repeated. Answer only as the"
        " user decided, and name the `question` that was answered. Returns as `allowed` the answer that it has."
    ),
    "decide": (
        "Answers one small question about a text at once, without a sub-agent: which of your labels fits it, and how"
        " likely each is. Use it to sort, filter or route: `input` is the text, with the question if the labels do not"
        ' make it plain; `labels` are 2 to 20 answers to choose from, such as ["yes", "no"]. Without labels the'
        " classifier of this installation names a class of its own, if there is one. Returns `label`, the likeliest;"
        " `probabilities` by label; `unscored`, labels that the model found too unlikely to tell. Nothing is looked up"
        " and no tool is called: for work, use `spawn` or `run`."
    ),
    "tools": "Lists the tools that sub-agents may call, by server, and which servers are down and why.",
}

HANDLE = "Handle of a sub-agent, as `spawn` or `run` returned it."
HANDLES = "Handles of sub-agents, as `spawn` or `run` returned them; 1 to 1000."
MODE = "'all': wait for all of them; 'any': return when the first has ended."
TIMEOUT = "Most seconds to wait, 0 to 600."
ALLOW = "true: make the call; false: the sub-agent is told that it was declined."
QUESTION = (
    "`question` of the pendingApproval that is answered, so that a repeated answer is not taken for the next one's; a"
    " question that was answered keeps its answer. Left out: the first that is open."
)
INPUT = "The text to decide about, in full: nothing else of this conversation is known."
LABELS = "2 to 20 different answers to choose from, each a short line; left out: the classifier's own classes."
DECIDING_MODEL = "Model to ask; left out: the first that there is."

ARGUMENTS = {
    "task": "What to do, in full: the sub-agent knows nothing else of this conversation.",
    "model": "Model to use; left out: the parent's, or the default.",
    "serviceClass": "'interactive' if a person waits for the answer, else 'batch'. A child has its parent's.",
    "system": "System text that comes before the task.",
    "maxToolCalls": "Most tool calls; when they are spent, the sub-agent has to answer. 0: none.",
    "tools": "Names of the tools it may call, as `tools` lists them; left out: all.",
    "maxTokens": "Most tokens of one reply; 0: the engine decides.",
    "parallelToolCalls": "Whether several tool calls of one reply are made at the same time.",
    "parent": "Handle of the sub-agent below which it belongs: counts to its budget, is cancelled with it.",
    "budgetTokens": "Most tokens, of prompts and replies, for it and everything below it.",
    "budgetToolCalls": "Most tool calls for it and everything below it.",
    "budgetSeconds": "Most seconds from its start for it and everything below it.",
    "approveTools": "Tools that a person must allow each time, beside those that say that they destroy something.",
}
