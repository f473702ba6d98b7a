"""Web pages that reach the runtime under a name of their own, or from elsewhere."""

from __future__ import annotations

import pathlib

import aiohttp
import pytest

from runtime.origins import Served
from tests.runtime.service_process import running_runtime


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:7000", None, None),
        ("LOCALHOST", None, None),
        ("[::1]:7000", "http://localhost:3000", None),
        ("runtime.example", "https://runtime.example", None),
        ("127.0.0.1", "https://app.example", None),
        ("evil.example:7000", None, 421),
        ("127.0.0.1.evil.example", None, 421),
        ("127.0.0.1@evil.example", None, 421),
        ("", None, 421),
        ("[", None, 421),
        ("127.0.0.1", "https://evil.example", 403),
        ("127.0.0.1", "https://app.example.evil.example", 403),
        ("127.0.0.1", "http://app.example", 403),
        ("127.0.0.1", "null", 403),
        ("127.0.0.1", "http://[", 403),
    ],
)
def test_only_named_hosts_and_origins_are_served(host: str, origin: str | None, status: int | None) -> None:
    served = Served.of(("Runtime.example",), ("https://app.example",), listens_on="127.0.0.1", has_token=False)
    refusal = served.refusal(host, origin)
    assert (refusal[0] if refusal else None) == status


def test_off_loopback_the_token_stands_in_for_names_that_are_not_known() -> None:
    assert Served.of((), (), listens_on="0.0.0.0", has_token=True).refusal("anything", None) is None  # noqa: S104
    assert Served.of((), (), listens_on="0.0.0.0", has_token=True).refusal("x", "http://x") is not None  # noqa: S104
    assert Served.of((), (), listens_on="0.0.0.0", has_token=False).refusal("anything", None) is not None  # noqa: S104
    assert Served.of(("a",), (), listens_on="0.0.0.0", has_token=True).refusal("anything", None) is not None  # noqa: S104


async def test_a_web_page_reaches_neither_mcp_nor_status(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path) as runtime:
        async with aiohttp.ClientSession() as session:
            for path in ("/mcp", "/status"):
                for headers, status in (
                    ({"Host": "evil.example"}, 421),
                    ({"Origin": "https://evil.example"}, 403),
                ):
                    async with session.get(runtime.url + path, headers=headers) as answer:
                        assert (answer.status, "error" in await answer.json()) == (status, True)
            async with session.get(runtime.url + "/status") as answer:
                assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (200, False)


async def test_the_schedulers_page_may_read_the_status_and_nothing_else(tmp_path: pathlib.Path) -> None:
    page = {"Origin": "http://127.0.0.1:5001"}
    with running_runtime(tmp_path) as runtime:
        async with aiohttp.ClientSession(headers=page) as session:
            async with session.get(runtime.url + "/status") as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == page["Origin"]
            for method, path in (("GET", "/mcp"), ("OPTIONS", "/mcp"), ("POST", "/mcp"), ("GET", "/metrics")):
                async with session.request(method, runtime.url + path) as answer:
                    assert "Access-Control-Allow-Origin" not in answer.headers, (method, path)
