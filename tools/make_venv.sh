#!/bin/sh
# usage: make_venv.sh VENV LEVEL
# Makes the virtual environment, or brings it up to date in place, with what requirements/LEVEL.lock
# names, and installs the project's two distributions into it, editable. uv does it where it is
# installed, in an eighth of the time; pip does the same.
set -eu

venv=$1
lock=requirements/$2.lock
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
    if [ -n "${PYTHON:-}" ]; then
        fail "storenode needs Python 3.11 or newer, and PYTHON names $PYTHON, which is older or does not run: name another with \`make PYTHON=/path/to/python3\`."
    fi
    fail "storenode needs Python 3.11 or newer and found none: install it, or name it with \`make PYTHON=/path/to/python3\`."
}

# Runs an installer quietly; what it said is shown only when it fails.
install() {
    if command -v uv >/dev/null 2>&1; then
        set -- env VIRTUAL_ENV="$venv" uv pip install "$@"
    else
        # As uv does: most modules are imported by nobody.
        set -- "$venv/bin/python" -m pip install --no-compile "$@"
    fi
    "$@" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        fail "The packages that $lock names could not be installed, the lines above say why: check the connection to the package index and the free disk space, then run the command again."
    }
}

if ! "$venv/bin/python" -c "$minimum" >/dev/null 2>&1 || [ ! -x "$venv/bin/pip" ]; then
    python=$(find_python)
    "$python" -m venv --clear "$venv" || fail "No virtual environment could be made in $venv: check that this folder may be written to."
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf 'Installing what %s names into %s ...\n' "$lock" "$venv" >&2
# Unless the environment says otherwise, both give up within a minute where nothing answers.
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_RETRIES="${PIP_RETRIES:-1}" PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-20}"
export UV_HTTP_RETRIES="${UV_HTTP_RETRIES:-1}" UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-20}"
if command -v uv >/dev/null 2>&1; then
    # uv refuses to work where it cannot write its cache, as in a home that is read-only.
    cache=$(uv cache dir)
    mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || export UV_NO_CACHE=1
fi
install --require-hashes --requirement "$lock"
install --no-deps --no-build-isolation --editable . --editable packaging/node

# What the commands import is compiled once, also where Python may not write what it compiles: a node
# would spend more than half of each start on it.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -P - <<'END'
from contextlib import suppress
from importlib import import_module

with suppress(ImportError):  # what is installed need not have the commands, or what each imports
    commands = import_module("storenode.cli.main").COMMANDS.values()
    packages = ("store.cli" if each.extra else "storenode.cli" for each in commands)
    modules = [f"{a}.{b.place.partition(':')[0]}" for a, b in zip(packages, commands)]
    for name in (*modules, "store.runtime.node", "store.http.app", "alembic.command"):
        with suppress(ImportError):
            import_module(name)
END
