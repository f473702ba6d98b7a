"""`python -m fakes.provider`: a simulated hosted endpoint with rate limits, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import sys

from common.signals import serve_until_signal
from fakes.provider.config import ProviderConfig
from fakes.provider.server import ProviderServer


async def serve(config: ProviderConfig, stop: asyncio.Event) -> int:
    """Runs until `stop`: the process's exit code."""
    server = ProviderServer(config)
    try:
        await server.start()
    except OSError as error:
        print(f"LUFTPAUSE_PROVIDER_PORT={config.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    limits = f"tokens={config.window_tokens} requests={config.window_requests} period_s={config.period_s:g}"
    print(f"event=listening service=provider host={config.host} port={server.port} {limits}", flush=True)
    await stop.wait()
    await server.finish()
    return 0


def main() -> int:
    """Reads the configuration and serves: the exit code."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s logger=%(name)s %(message)s")
    ProviderConfig.arguments("fakes.provider", __doc__).parse_args()
    config = ProviderConfig.read()
    return asyncio.run(serve_until_signal(lambda stop: serve(config, stop)))


if __name__ == "__main__":
    sys.exit(main())
