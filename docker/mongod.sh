#!/usr/bin/env bash
# Starts a member of the replica set. Members know each other by a keyfile on a shared volume; who starts first makes it.
set -euo pipefail

keyfile=/keyfile/keyfile
owner=$(id -un mongodb 2>/dev/null || id -un) # the public image runs the server as mongodb

if [[ ! -e $keyfile ]]; then
    made=$(mktemp /keyfile/new.XXXXXX)
    head -c 756 /dev/urandom | base64 >"$made"
    chmod 400 "$made"
    chown "$owner" "$made"
    # A link appears whole or not at all, and fails when another member was faster.
    ln "$made" "$keyfile" 2>/dev/null || [[ -e $keyfile ]]
    rm "$made"
fi

server=(mongod)
if command -v docker-entrypoint.sh >/dev/null; then
    server=(docker-entrypoint.sh mongod)
fi
# Errors only: its other lines, thousands of them, would hide those of the tests.
exec "${server[@]}" --keyFile "$keyfile" "$@" > >(exec grep --line-buffered -v '"s":"[DIW]')
