#!/usr/bin/env bash
# Pins every dependency with its hashes, for all platforms. Needs uv (pip install uv).
# requirements.lock is what the services need, requirements-dev.lock also what the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
    --no-annotate --custom-compile-command tools/lock.sh --extra all pyproject.toml)
"${compile[@]}" -o requirements.lock
"${compile[@]}" --group dev -c requirements.lock -o requirements-dev.lock
