"""House rules of the texts: comments of the contract, links, versions, and nothing that belongs to one machine."""

from __future__ import annotations

import pathlib
import re

import pytest

from cli.state import version
from runtime.mcp_server import VERSION
from tests.house.sources import ROOT, texts

PRIVATE = re.compile(
    r"\b(10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(1[6-9]|2\d|3[01])\.\d+\.\d+)\b|(?<![\w.~}])/(home|root|work|Users)/\w"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", sorted((ROOT / "protos").glob("*.proto")), ids=lambda path: str(path.name))
def test_everything_in_the_contract_has_a_comment(path: pathlib.Path) -> None:
    lines = path.read_text().splitlines()
    declares = re.compile(r"^\s*(message|enum|service|oneof|rpc)\b|=\s*\d+\s*(\[.*\])?;")
    bare = [
        f"{path.name}:{number} {line.strip()}"
        for number, (before, line) in enumerate(zip(["", *lines], lines, strict=False), 1)
        if declares.search(line) and not before.strip().startswith("//")
    ]
    assert not bare, "\n".join(bare)


def test_no_text_names_a_path_or_an_address_of_one_machine() -> None:
    found = [
        f"{name}:{number} {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_text_leaves_work_to_be_done() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    assert [name for name, text in texts() if marks.search(text)] == []


def test_every_link_of_the_documents_leads_somewhere() -> None:
    dead = []
    for name, text in texts():
        if not name.endswith(".md"):
            continue
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            file = (ROOT / name).parent / target if target else ROOT / name
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                dead.append(f"{name}: {link}")
    assert not dead, "\n".join(dead)


def _anchors(file: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## {re.escape(version())}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_containers_are_of_this_version() -> None:
    named = re.findall(r"LUFTPAUSE_VERSION:-([^}]+)}", (ROOT / "compose.yaml").read_text())
    assert named
    assert set(named) == {version()}


def test_mcp_clients_are_told_this_version() -> None:
    assert version() == VERSION


def test_every_image_copies_only_what_its_service_needs() -> None:
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        folders = re.findall(r"^COPY (\w+)/", path.read_text(), re.MULTILINE)
        assert folders[:2] == ["protos", "common"]
        assert len(folders) == 3, path.name
