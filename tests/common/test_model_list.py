"""Reading the model lists of engines."""

from __future__ import annotations

import pytest

from common import model_list


@pytest.mark.parametrize(
    ("text", "models"),
    [
        (b'{"data":[]}', ()),
        (b'{"data":[{"id":"m"},{"id":7},{"id":""},{"id":"' + b"x" * 600 + b'"}]}', ("m",)),
        (b'{"data":[{"id":"m"},{"id":"x\\ud800"},{"id":"\\udc00"},{"id":"\\ud83d\\ude00"}]}', ("m", "\U0001f600")),
        (b"", None),
        (b"[]", None),
        (b'{"data":null}', None),
        (b'{"data":[null]}', None),
        (b'{"data":[{"name":"m"}]}', None),
        (b"[" * 100_000, None),
        (b"\xff", None),
    ],
)
def test_a_model_list_is_read_or_is_none(text: bytes, models: tuple[str, ...] | None) -> None:
    assert model_list.read_models(text) == models
