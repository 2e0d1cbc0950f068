#!/bin/sh
# usage: make_venv.sh VENV LOCK
# Makes the virtual environment, or brings it up to date in place, with exactly what the
# lock file names, and installs the project itself into it, editable.
set -eu

venv=$1
lock=$2
minimum='import sys; sys.exit(sys.version_info < (3, 11))'

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Prints the first interpreter that can make the environment. One that is new enough but
# lacks the module is remembered, since the remedy then is another package.
find_python() {
    without_venv=
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        "$candidate" -c "$minimum" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv has no venv module: install it, on Debian and Ubuntu with \`apt install python3-venv\`."
    fi
    fail "storenode needs Python 3.11 or newer and found none: install it, or name it with \`make PYTHON=/path/to/python3\`."
}

if ! "$venv/bin/python" -c "$minimum" >/dev/null 2>&1 || [ ! -x "$venv/bin/pip" ]; then
    python=$(find_python)
    "$python" -m venv --clear "$venv"
fi

printf 'Installing what %s names into %s ...\n' "$lock" "$venv" >&2
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$venv/bin/python" -m pip install --quiet --require-hashes --requirement "$lock"
"$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation --editable .
