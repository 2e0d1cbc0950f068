#!/usr/bin/env bash
# Installs the Debian packages that the checks need and that are missing; names them where it may not.
set -euo pipefail

# program, or path of a library, and package
wanted=(
    "docker-compose docker-compose"
    "promtool prometheus"
    "psql postgresql-client"
    "systemd-analyze systemd"
    "openssl openssl"
    "chromium chromium"
    "chromedriver chromium-driver"
    "/usr/lib/*/libnss_wrapper.so libnss-wrapper"
)
missing=()
for pair in "${wanted[@]}"; do
    read -r program package <<<"$pair"
    command -v "$program" >/dev/null || compgen -G "$program" >/dev/null || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing: ${missing[*]} (names of Debian's packages). Install them, or run this as root on Debian." >&2
    exit 1
fi

# Some packages start a service when they are installed; nothing here wants it to run.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
fi

echo "Installing ${missing[*]} ..."
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "The packages ${missing[*]} could not be installed: the lines above say why." >&2
    exit 1
fi
rm -f "$log"
