"""An agent that leaves in mid-task when its rate limit is used up and, run again, goes on without redoing a step.

BASE_URL (http://127.0.0.1:8080/v1), MODEL (the first one listed), LUFTPAUSE_TOKEN (where the services want one),
FOLDER (checkpoints) is where it keeps what it has done, RUN_ID (letters) the run to begin or to go on with.
WINDOW_TOKENS: do as if only so many tokens were left now. Without, luftpause tells what its forecast is.
"""

import os
import sys

from luftpause_client import Luftpause, NotNowError, Reading, session
from openai import OpenAI

HANDBOOK = " ".join(f"Rule {n}: a letter of kind {n} is answered politely, and within {n} days." for n in range(1, 31))
LETTERS = ["The lamp came broken.", "When do you open?", "Thank you for the tea.", "Where is my parcel?"]
SUSPENDED = 75
"""Exit code of a run that wants to be started again later, as EX_TEMPFAIL of sysexits.h."""


def main() -> int:
    """Answers the letters that are not answered yet, each in one turn, until the window is used up."""
    base_url = os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1")
    token = os.environ.get("LUFTPAUSE_TOKEN") or "none"
    # Retries of the client's own would sleep where the run should leave.
    client = OpenAI(base_url=base_url, api_key=token, max_retries=0)
    model = os.environ.get("MODEL") or client.models.list().data[0].id
    run_id = os.environ.get("RUN_ID", "letters")
    luftpause = Luftpause(base_url, token=token, caller="examples", run_class="batch")
    window = os.environ.get("WINDOW_TOKENS")
    used = 0

    def ask(messages: list[dict[str, str]]) -> tuple[str, int]:
        nonlocal used
        answer = client.chat.completions.with_raw_response.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]  # plain dicts, as the checkpoint keeps them
            max_tokens=64,
            extra_headers=luftpause.headers(run_id),
        )
        reply = answer.parse()
        tokens = reply.usage.total_tokens if reply.usage else 0
        used += tokens
        details = reply.usage.prompt_tokens_details if reply.usage else None
        cached = (details and details.cached_tokens) or 0
        print(f"turn of run {answer.headers.get('x-luftpause-run-id')}: cached_tokens {cached}, {tokens} tokens")
        return reply.choices[0].message.content or "", tokens

    def remaining() -> Reading:
        return int(window or 0) - used

    with session(
        run_id, ask, telemetry=remaining if window else luftpause, folder=os.environ.get("FOLDER", "checkpoints")
    ) as run:
        if not run.messages:
            run.messages.append({"role": "system", "content": f"You answer letters. {HANDBOOK}"})
        done = run.state.setdefault("answered", [])
        print(f"run {run_id}: {len(done)} of {len(LETTERS)} letters answered, {run.spent_tokens} tokens spent")
        for letter in LETTERS[len(done) :]:
            question = {"role": "user", "content": letter}
            try:
                answer = run.call([*run.messages, question])
            except NotNowError as refusal:
                print(f"suspended: {refusal}; run me again later")
                return SUSPENDED
            run.messages += [question, {"role": "assistant", "content": answer}]
            done.append(letter)
            run.checkpoint()
            print(f"answered: {letter}")
        if not run.completed:
            run.complete()
        print(f"run ended, {run.spent_tokens} tokens in {run.turns} turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
