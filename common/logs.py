"""How services log: one line each on standard error, `key=value` pairs, never a secret."""

from __future__ import annotations

import logging

OURS = ("dataplane", "fakes", "runtime", "scheduler", "tracing")
"""The first words of our loggers' names."""


def set_up_logging(level: str) -> None:
    """Logs from `level` on, one of `ServiceConfig.log_level`. The details of libraries are never logged."""
    logging.basicConfig(
        level=logging.INFO if level == "debug" else level.upper(),
        format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    if level == "debug":
        for name in OURS:
            logging.getLogger(name).setLevel(logging.DEBUG)
