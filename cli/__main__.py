"""The entry point of `./luftpause`, or `python -m cli`. Read next: `app`."""

from __future__ import annotations

from cli import interrupts


def main() -> None:
    """Runs the command line."""
    interrupts.leave_quietly()
    from cli.app import app  # noqa: PLC0415 - takes a third of a second, in which Ctrl-C is quiet already

    app(prog_name="./luftpause")


if __name__ == "__main__":
    main()
