"""A tiny service in place of the real ones, for tests of how `up` treats services. `python -m tests.cli.standin`.

STANDIN_PORTS are its ports; each answers what all services would at once, but `/die`, which ends it with exit code 3.
STANDIN_MODELS is the status that it answers `/v1/models` with, STANDIN_PAGE the body of all its answers in place of
its own; STANDIN_SICK=1 makes its one replica unhealthy.
STANDIN_UNHEALTHY=1 makes that a 503, STANDIN_HANGS=1 makes it deaf to SIGTERM, STANDIN_CHILD=1 gives it a child,
STANDIN_DIES=1 ends it at once with exit code 3, STANDIN_NO_TOOLS=1 cuts off its one tool server.
"""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading


class Answers(http.server.BaseHTTPRequestHandler):
    """See the module."""

    BODY = (
        os.environ.get("STANDIN_PAGE", "").encode()
        or b"""{"scheduler": "connected", "metrics": ["luftpause_scheduler_x", "luftpause_dataplane_x"],
        "data": [{"id": "standin-1"}], "held": [], "runs": [], "servers": [%s], "replicas": [
        {"name": "one", "models": [], "healthy": %s, "in_flight": 0, "capacity": null, "engine_running": null,
         "engine_waiting": null, "kv_usage": null}]}"""
        % (
            b'{"name": "wiki", "up": false, "reason": "/nope: No such file"}'
            if os.environ.get("STANDIN_NO_TOOLS")
            else b"",
            b"false" if os.environ.get("STANDIN_SICK") else b"true",
        )
    )

    def do_GET(self) -> None:
        """Answers as the module says."""
        if self.path == "/die":
            print("dying as asked", flush=True)
            os._exit(3)
        models = int(os.environ.get("STANDIN_MODELS", "200")) if self.path.endswith("/models") else 200
        self.send_response(503 if os.environ.get("STANDIN_UNHEALTHY") == "1" else models)
        self.send_header("content-length", str(len(self.BODY)))
        self.end_headers()
        self.wfile.write(self.BODY)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by the base
        """Quiet."""


def main() -> None:
    """Entry point."""
    if os.environ.get("STANDIN_DIES") == "1":
        sys.exit(3)
    hangs = os.environ.get("STANDIN_HANGS") == "1"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if hangs else lambda *_: os._exit(0))
    if os.environ.get("STANDIN_CHILD") == "1":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    servers = [
        http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Answers)
        for port in os.environ["STANDIN_PORTS"].split(",")
    ]
    print(f"listening on {os.environ['STANDIN_PORTS']}", flush=True)
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
