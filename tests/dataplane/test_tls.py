"""Engines behind https."""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dataplane import sockets
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import REPLY


def certificate(folder: pathlib.Path) -> pathlib.Path:
    """A self-made certificate for 127.0.0.1 and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


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
