"""Engines behind https."""

from __future__ import annotations

import pathlib
import ssl

import pytest

from dataplane import sockets
from tests.certificates import certificate
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import REPLY


@pytest.mark.parametrize("trusted", [True, False])
async def test_an_engine_behind_https_is_reached_if_it_is_trusted(
    rig: Rig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    path = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    await rig.engine.stop()
    await rig.engine.start(tls)
    rig.scheduler.url = f"https://127.0.0.1:{rig.engine.port}/base/v1"
    monkeypatch.setattr(sockets, "tls_context", ssl.create_default_context)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
    await rig.start()
    response = await rig.ask(request(CHAT))
    if trusted:
        assert (response.status, response.body) == (200, REPLY)
        assert rig.engine.calls[0].line == "POST /base/v1/chat/completions HTTP/1.1"
    else:
        assert response.status == 502
        assert response.error.startswith("engine engine-0: TLS: ")
