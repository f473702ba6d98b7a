"""House rules of the code: sizes, words, and what pure modules may import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.sources import CODE_FOLDERS, PACKAGES, Module, modules

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
BANNED_WORDS = {"program", "backend", "manager", "handler", "utils"}
FOREIGN_NAMES = {"handler_call_details"}
"""Names of arguments that an interface of others prescribes."""

PURE = re.compile(r"\b(Pure|Sans-I/O)\b(?! but)")
"""A module says in its docstring that it is pure."""
PURE_WITHOUT_SAYING = {"scheduler.events", "scheduler.effects"}
"""Nothing but frozen records."""
MUST_BE_PURE = {
    "common.ids",
    "scheduler.admission",
    "scheduler.core",
    "scheduler.fairness",
    "scheduler.placement",
    "scheduler.state",
    "dataplane.identity",
    "dataplane.meter",
    "common.sse",
    "fakes.engine.batch",
    "fakes.engine.kv_cache",
    "fakes.engine.latency",
    "loadgen.record",
}
"""Modules that would not be what they are if they lost the word."""
PURE_PARTS = {"common.pool.Pool", "common.pool.Replica"}
"""Records in modules that also do I/O."""
IMPURE_IMPORTS = {
    "aiohttp", "asyncio", "ctypes", "fcntl", "glob", "grpc", "http.client", "http.server", "httptools", "io", "logging",
    "multiprocessing", "os", "pathlib", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl",
    "subprocess", "sys", "tempfile", "threading", "time", "urllib.request", "uuid", "uvloop",
}  # fmt: skip
"""Modules that do I/O, or tell the time, or bring chance."""


def is_pure(module: Module) -> bool:
    """Whether `module` calls itself pure."""
    return bool(PURE.search(ast.get_docstring(module.tree) or "")) or module.name in PURE_WITHOUT_SAYING


def imports(module: Module) -> Iterator[str]:
    """Dotted names of what `module` imports, wherever in it; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names if names <= PURE_PARTS else {node.module, *names}


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of everything that `tree` gives a name to."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case _:
                pass


def words(name: str) -> set[str]:
    """The words of a name in snake or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_modules_and_functions_are_short() -> None:
    long = []
    for module in modules(*CODE_FOLDERS):
        lines = module.text.count("\n")
        if lines >= MODULE_LINES_MAX:
            long.append(f"{module.path}: {lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length >= FUNCTION_LINES_MAX:
                    long.append(f"{module.path}:{node.lineno} {node.name}: {length} lines")
    assert not long, "\n".join(long)


def test_every_module_says_what_it_is() -> None:
    silent = [module.path for module in modules(*CODE_FOLDERS) if module.text and not ast.get_docstring(module.tree)]
    assert not silent, "\n".join(silent)


def test_our_names_avoid_words_that_say_nothing() -> None:
    found = [
        f"{module.path}:{line} {name}"
        for module in modules(*CODE_FOLDERS)
        for line, name in [(1, module.name), *defined_names(module.tree)]
        if words(name) & BANNED_WORDS and name not in FOREIGN_NAMES
    ]
    assert not found, "\n".join(found)


def test_what_should_be_pure_says_so() -> None:
    pure = {module.name for module in modules(*PACKAGES) if is_pure(module)}
    assert pure >= MUST_BE_PURE, MUST_BE_PURE - pure


def test_pure_modules_import_only_pure_modules() -> None:
    ours = {module.name: module for module in modules(*PACKAGES)}
    faults = []
    for module in ours.values():
        if is_pure(module):
            for name in imports(module):
                # A package itself is no more than its docstring; what counts is what is imported of it.
                of_ours = name in ours and not ours[name].path.endswith("__init__.py")
                if name in IMPURE_IMPORTS or (of_ours and not is_pure(ours[name])):
                    faults.append(f"{module.path} imports {name}")
    assert not faults, "\n".join(faults)


def test_only_configurations_read_the_environment() -> None:
    allowed = {"common/config.py", "common/secret.py"}
    found = [
        f"{module.path}:{node.lineno}"
        for module in modules("client", "common", "dataplane", "fakes", "loadgen", "scheduler")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and module.path not in allowed
    ]
    assert not found, "\n".join(found)
