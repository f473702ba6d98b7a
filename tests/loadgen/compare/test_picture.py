"""The picture: well-formed, every entry in it, better to the right and up."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from loadgen.compare import picture


def entry(interactive: float, batch: float | None, p50: float) -> dict[str, Any]:
    def spread(value: float) -> dict[str, float]:
        return {"median": value, "min": value * 0.9, "max": value * 1.1}

    of = {"interactive": {"runs_per_min": spread(interactive), "run_s_p50": spread(p50), "run_s_p90": spread(p50 * 2)}}
    return of if batch is None else of | {"batch": {"runs_per_min": spread(batch)}}


def drawn(entries: dict[str, Any]) -> ET.Element:
    return ET.fromstring(picture.draw({"entries": entries}))  # noqa: S314 - our own


def test_every_entry_is_a_point_and_better_is_right_and_up() -> None:
    svg = drawn({"router": entry(10, 130, 20), "a<b": entry(35, 65, 6), "alone": entry(43, None, 5)})
    router, other, alone = (
        (float(point.attrib["cx"]), float(point.attrib["cy"])) for point in svg.iter() if point.tag.endswith("circle")
    )
    assert router[0] > other[0] > alone[0]
    assert router[1] > other[1] > alone[1]
    texts = [each.text for each in svg.iter() if each.tag.endswith("text")]
    assert texts.count("a<b") == 2, "beside its point and beside its bars"


def test_a_report_in_which_nothing_happened_can_be_drawn() -> None:
    assert drawn({"router": {}}).attrib["width"]
    assert drawn({}).attrib["width"]
