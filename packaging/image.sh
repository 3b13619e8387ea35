#!/bin/bash
# Builds the container image offtop:VERSION from the Debian package: image.sh DEB [OPTION...]. Uses podman, buildah or
# docker, or the command in TOOL; the options are for its `build`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deb=$1
shift
version=$(dpkg-deb -f "$deb" Version)
if [ -z "${TOOL:=$(command -v podman buildah docker | head -n 1)}" ]; then
    echo "offtop: no podman, buildah or docker. Try: apt install podman" >&2
    exit 1
fi
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$deb" "$context"
export DOCKER_BUILDKIT=1 # docker before 23 cannot mount in a build without it
$TOOL build "$@" -t "offtop:${version%-*}" -f "$here/Containerfile" "$context"
