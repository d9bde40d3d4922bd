#!/usr/bin/env bash
# Starts a member of the replica set. Members share a keyfile on a volume; the first one to start creates it.
set -euo pipefail

keyfile=/keyfile/keyfile
owner=$(id -un mongodb 2>/dev/null || id -un) # the public image runs the server as mongodb

if [[ ! -e $keyfile ]]; then
    created=$(mktemp /keyfile/new.XXXXXX)
    head -c 756 /dev/urandom | base64 >"$created"
    chmod 400 "$created"
    chown "$owner" "$created"
    # A link appears complete or not at all, and fails if another member was faster.
    ln "$created" "$keyfile" 2>/dev/null || [[ -e $keyfile ]]
    rm "$created"
fi

server=(mongod)
if command -v docker-entrypoint.sh >/dev/null; then
    server=(docker-entrypoint.sh mongod)
fi
# Errors only: thousands of other lines would hide the output of the tests.
exec "${server[@]}" --keyFile "$keyfile" "$@" > >(exec grep --line-buffered -v '"s":"[DIW]')
