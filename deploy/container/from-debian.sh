#!/bin/sh
# usage: from-debian.sh [--target node|spark] [OPTION OF buildah build]...
# Builds an image of Containerfile without a container daemon and without an image registry: its base
# is made by debootstrap from Debian's packages, and buildah's isolation is chroot, which also works
# inside a container. Needs root, and Debian's packages buildah and debootstrap. The image is
# storenode:latest, or storenode-spark:latest, in Docker's format, which has the health check.
#
#   sh deploy/container/from-debian.sh --target node
#   container=$(buildah from storenode)
#   buildah run --isolation=chroot "$container" -- storenode --version
set -eu

suite=bookworm
base=localhost/storenode-debian:$suite
target=node
if [ "${1-}" = --target ]; then
    target=$2
    shift 2
fi
case $target in
    node) tag=storenode:latest ;;
    spark) tag=storenode-spark:latest ;;
    *) echo "from-debian.sh: --target must be node or spark, not $target." >&2; exit 2 ;;
esac
for program in buildah debootstrap; do
    command -v "$program" >/dev/null && continue
    echo "from-debian.sh: $program is missing: install Debian's package $program." >&2
    exit 1
done
if [ "$(id -u)" != 0 ]; then
    echo "from-debian.sh: debootstrap makes device files: run it as root." >&2
    exit 1
fi
root=$(cd "$(dirname "$0")/../.." && pwd)

# Once; `buildah rmi` the base to have it made of newer packages.
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,python3-dev,python3-venv "$suite" "$directory"
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$directory" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
fi

buildah build --isolation=chroot --format=docker --file "$root/deploy/container/Containerfile" \
    --build-arg "PYTHON_IMAGE=$base" --target "$target" --tag "$tag" "$@" "$root"
