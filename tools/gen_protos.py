"""Generates the Python code of protos/*.proto beside them; `--check` fails if what is committed is stale."""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def generate(out: pathlib.Path) -> None:
    """Writes `<name>_pb2.py`, `.pyi` and `<name>_pb2_grpc.py`, `.pyi` of each proto below `out`/protos."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").glob("*.proto"))
    plugins = [
        f"--plugin=protoc-gen-{name}={pathlib.Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    outputs = [f"--{name}_out={out}" for name in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *plugins, *outputs, *sources]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is committed, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = pathlib.Path(folder)
        generate(fresh)
        new = {path.name: path.read_bytes() for path in (fresh / "protos").iterdir()}
        old = {path.name: path.read_bytes() for path in (ROOT / "protos").glob("*_pb2*")}
    stale = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    if stale:
        sys.exit(f"stale, run tools/gen_protos.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
