#!/bin/sh
# usage: install.sh SOURCE EXTRAS VENV
# Builds the wheel of the sources and installs it, with EXTRAS (comma-separated), into a new virtual
# environment: exactly the versions that requirements.lock names, each checked by its hash, and none
# of the others that it names.
set -eu

source=$1 extras=$2 venv=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Without hashes the lock is a list of constraints, which pip takes for building the wheel too.
sed 's/[[:space:]]*\\$//; /^[[:space:]]*--hash/d' "$source/requirements.lock" >"$scratch/pins.txt"
export PIP_CONSTRAINT="$scratch/pins.txt"

python3 -m venv "$venv"
"$venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$scratch" "$source"
wheel=$(echo "$scratch"/storenode-*.whl)
"$venv/bin/pip" install --quiet --dry-run --report "$scratch/report.json" "$wheel[$extras]"
python3 "$source/deploy/container/locked.py" "$source/requirements.lock" "$scratch/report.json" \
    >"$scratch/requirements.txt"

unset PIP_CONSTRAINT
"$venv/bin/pip" install --quiet --no-cache-dir --require-hashes -r "$scratch/requirements.txt"
"$venv/bin/pip" install --quiet --no-cache-dir --no-deps "$wheel"
