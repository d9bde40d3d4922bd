#!/usr/bin/env bash
# Starts docker-compose.yml, runs its service `tests` and then docker/network.sh, removes containers, networks and volumes,
# and exits with the status of the tests. It generates passwords for this run, and never shows them.
set -euo pipefail
cd "$(dirname "$0")/.."

if docker compose version >/dev/null 2>&1; then
    compose=(docker compose)
elif command -v docker-compose >/dev/null; then
    compose=(docker-compose)
else
    echo "compose-test needs 'docker compose' or 'docker-compose' (1.29 or newer); install Docker with Compose" >&2
    exit 1
fi
if ! docker info >/dev/null 2>&1; then
    echo "compose-test needs a Docker engine, and 'docker info' reaches none; start it, or set DOCKER_HOST" >&2
    exit 1
fi

export STOREDS_ADMIN_PASSWORD STOREDS_WRITER_PASSWORD STOREDS_READER_PASSWORD
for name in STOREDS_{ADMIN,WRITER,READER}_PASSWORD; do
    printf -v "$name" %s "$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')"
done

# A separate project, so that a plain `up` in this folder is not affected.
compose+=(--project-name "storeds-compose-test-$$")
clean_up() {
    "${compose[@]}" down --volumes --remove-orphans >/dev/null 2>&1 || echo "compose-test could not clean up" >&2
}
trap clean_up EXIT

run_tests() {
    local tests
    # Detached, because docker/network.sh needs the servers after the tests.
    "${compose[@]}" up --build --detach tests || return
    tests=$("${compose[@]}" ps --all --quiet tests) || return
    docker logs --follow "$tests"
    return "$(docker wait "$tests")"
}

start=$SECONDS
status=0
run_tests && bash docker/network.sh "${compose[@]}" || status=$?
if ((status)); then
    # `up` shows no output of a server that ended before it was healthy.
    "${compose[@]}" logs --no-color --tail=20 mongo1 mongo2 mongo3 init
fi
echo "== compose-test: exit code $status after $((SECONDS - start)) s"
exit "$status"
