"""A process beside `up` that ends the services if `up` dies without doing so itself (kill -9, a crash).

`python -m cli.guard` reads one line per started service from its standard input, `pid start-time name`, and sleeps in
that read. The end of the input means that `up` is gone: what was named is ended. The line `detached` means that the
services are to go on without `up`. Standard library alone, so that it stays small.
"""

from __future__ import annotations

import signal
import sys

from cli import processes

DETACHED = "detached"


def line(process: processes.Recorded) -> str:
    """The line that tells the guard of `process`."""
    return f"{process.pid}\t{process.started}\t{process.name}\n"


def main() -> None:
    """Entry point."""
    # Ends with `up` and not before: Ctrl-C and the like are for `up`.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = []
    for text in sys.stdin:
        if text.strip() == DETACHED:
            return
        pid, started, name = text.rstrip("\n").split("\t")
        told.append(processes.Recorded(name, int(pid), started))
    processes.end(told)


if __name__ == "__main__":
    main()
