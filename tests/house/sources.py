"""The files that the house rules are about."""

from __future__ import annotations

import ast
import functools
import pathlib
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = ("cli", "client", "common", "dataplane", "fakes", "loadgen", "runtime", "scheduler")
CODE_FOLDERS = (*PACKAGES, "examples", "tests", "tools")
_GENERATED = ("_pb2.py", "_pb2_grpc.py")


@dataclass(frozen=True)
class Module:
    """A module of ours."""

    path: str
    """From the root, with slashes."""
    text: str

    @property
    def name(self) -> str:
        """As it is imported."""
        return self.path.removeprefix("client/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @functools.cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)


@functools.cache
def modules(*folders: str) -> tuple[Module, ...]:
    """All modules below `folders` that no tool wrote."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    ours = (path for path in paths if not path.name.endswith(_GENERATED) and "node_modules" not in path.parts)
    return tuple(Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in ours)


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Path and content of every text file that somebody wrote, lock files and the licence apart."""
    found = {}
    suffixes = {".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".proto", ".js", ".mjs", ".json", ".html", ".svg", ""}
    suffixes.add(".Dockerfile")
    for folder in (*CODE_FOLDERS, "docs", "docker", "protos", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in suffixes and not {"node_modules", "__pycache__"} & {*path.parts}:
                found[path.relative_to(ROOT).as_posix()] = path
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in suffixes and path.name not in ("LICENSE", ".git"):
            found[path.name] = path
    return tuple((name, path.read_text(encoding="utf-8")) for name, path in sorted(found.items()))
