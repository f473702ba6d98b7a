"""`python -m dataplane`: one process, or a parent and its workers."""

from __future__ import annotations

from common.logs import set_up_logging
from common.open_files import allow_many
from dataplane import app, workers
from dataplane.config import DataplaneConfig


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    DataplaneConfig.arguments("dataplane", __doc__).parse_args()
    config = DataplaneConfig.read()
    set_up_logging(config.log_level)
    allow_many()
    if config.token is None:
        app.log.warning("token unset, everybody is let in setting=LUFTPAUSE_TOKEN")
    pool = app.read_pool(config)
    config.guard(), config.tls()  # what is wrong with their files is told here once, not by each worker
    if config.workers > 1:
        app.run(workers.Parent(config).serve)
    else:
        app.run(app.App(config, pool).serve)


if __name__ == "__main__":
    main()
