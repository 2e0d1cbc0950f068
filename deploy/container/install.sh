#!/bin/sh
# usage: install.sh LEVEL VENV
# Installs the sources in the current folder into a new virtual environment, with exactly the versions
# that requirements/LEVEL.lock names, each checked by its hash.
set -eu

level=$1 venv=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --require-hashes --requirement "requirements/$level.lock"
"$venv/bin/pip" install --quiet --no-deps --no-build-isolation . ./packaging/node
