#!/usr/bin/env bash
# Pins every dependency with its hashes, for all platforms. Needs uv (pip install uv).
# requirements.lock is what the services need, requirements-dev.lock also what the tests need, tools/pip.lock the pip
# that installs them.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
    --no-annotate --custom-compile-command tools/lock.sh)
"${compile[@]}" --extra all pyproject.toml -o requirements.lock
"${compile[@]}" --extra all pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
"${compile[@]}" - -o tools/pip.lock <<<"pip>=26"
