#!/usr/bin/env bash
# Gets redis-server for the tests where it is missing, from Debian's or Ubuntu's packages.
#
# It unpacks the package, and those that it needs, into build/redis: no root rights are needed, and
# no service starts. If that fails, it says so, and the tests that need a server are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/build/redis

tell() { # PROGRAM HOW
    echo "redis-server for the tests: $("$1" --version | cut -d' ' -f3), $2"
    exit 0
}

unpack() { # with package lists of its own: those of the system may be old, or missing
    local own=$folder/apt
    mkdir -p "$own"/{lists/partial,cache/archives/partial} "$folder/packages"
    local apt=(apt-get -o "Dir::State::lists=$own/lists" -o "Dir::Cache=$own/cache"
        -o Debug::NoLocking=1)
    "${apt[@]}" update || return 1
    # Names of all packages that an installation would fetch, from lines such as 'URL' NAME_1.0.deb
    "${apt[@]}" install --print-uris -y --no-install-recommends redis-server |
        sed -n "s/^'[^']*' \([a-z0-9.+-]*\)_.*/\1/p" >"$folder/names" || return 1
    [ -s "$folder/names" ] || return 1
    (cd "$folder/packages" && xargs "${apt[@]}" download <../names) || return 1
    local package
    for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/root" || return 1; done
    cat >"$folder/redis-server" <<'SH'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$(find "$here/root" -type d -name '*-linux-gnu*' | paste -sd:) \
    exec "$here/root/usr/bin/redis-server" "$@"
SH
    chmod +x "$folder/redis-server"
    "$folder/redis-server" --version
}

if command -v redis-server >/dev/null; then tell redis-server "which was there"; fi
if [ -x "$folder/redis-server" ]; then tell "$folder/redis-server" "unpacked before"; fi
mkdir -p "$folder"
log=$folder/log
if unpack >"$log" 2>&1 </dev/null; then tell "$folder/redis-server" "unpacked into build/redis"; fi
echo "redis-server for the tests: none, so tests that need it are skipped; the reason:"
tail -n 3 "$log"
