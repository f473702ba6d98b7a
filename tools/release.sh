#!/usr/bin/env bash
# Builds, tags and pushes the images of a release: LUFTPAUSE_REGISTRY=registry.example/luftpause tools/release.sh v1.2.3
# DRY_RUN=1 prints the commands in place of running them.
set -euo pipefail
cd "$(dirname "$0")/.."
images=(scheduler dataplane runtime)

fail() {
    echo "release: $1" >&2
    exit 1
}

run() {
    if [ -n "${DRY_RUN:-}" ]; then echo "$*"; else "$@"; fi
}

tag=${1-}
[[ $tag =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "usage: tools/release.sh vX.Y.Z"
version=${tag#v}
[ -n "${LUFTPAUSE_REGISTRY:-}" ] || fail "LUFTPAUSE_REGISTRY is not set; expected host/path to push to"
grep -q "^version = \"$version\"\$" pyproject.toml || fail "pyproject.toml does not say version = \"$version\""
grep -q "^## $version\b" CHANGELOG.md || fail "CHANGELOG.md has no section for $version"
[ -z "$(git status --porcelain)" ] || fail "the working tree has changes that are not committed"

for image in "${images[@]}"; do
    run docker build --file "docker/$image.Dockerfile" --tag "$LUFTPAUSE_REGISTRY/$image:$version" .
done
for image in "${images[@]}"; do
    run docker push "$LUFTPAUSE_REGISTRY/$image:$version"
done
