#!/usr/bin/env bash
# Disconnects nodes of the replica set from their network while docker/epochs.py is in the middle of an epoch.
# Usage: network.sh COMPOSE…, the command and project that started the services and packed the digits.
set -euo pipefail
compose=("$@")
nodes=(mongo1 mongo2 mongo3)
patience=60 # the longest wait, in seconds
slack=20 # seconds beyond a deadline, for a busy machine; PyMongo itself waits 30

declare -A id network
for node in "${nodes[@]}"; do
    id[$node]=$("${compose[@]}" ps --quiet "$node")
    network[$node]=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.NetworkID}}{{end}}' "${id[$node]}")
done

cut_off() { # cut_off NODE…
    local node
    for node; do
        docker network disconnect "${network[$node]}" "${id[$node]}"
    done
}

connect() { # connect NODE…
    local node
    for node; do
        # Disconnecting removes the alias, which is the name of the service.
        docker network connect --alias "$node" "${network[$node]}" "${id[$node]}"
    done
}

log() {
    docker logs "$reader" 2>&1 | sed "s/$STOREDS_READER_PASSWORD/the password/g"
}

fail() { # fail WHAT
    log >&2
    echo "network: the output of docker/epochs.py is above; $1" >&2
    exit 1
}

read_epochs() { # read_epochs BATCH ARGUMENT… : until it has stopped before that batch
    local said
    said=$("${compose[@]}" run --detach --no-deps tests python docker/epochs.py "$@" 2>&1) || { echo "$said" >&2 && exit 1; }
    reader=$(tail -n 1 <<<"$said")
    await "$1"
}

await() { # await BATCH : until the program has stopped before it
    local end=$((SECONDS + patience))
    until grep -q "^stopped before batch $1 " <<<"$(log)"; do
        [[ $(docker inspect --format '{{.State.Running}}' "$reader") == true ]] || fail "it ended before batch $1"
        ((SECONDS < end)) || fail "batch $1 did not come within $patience s"
        sleep 0.1
    done
}

go_on() {
    docker kill --signal USR1 "$reader" >/dev/null
}

ends_with() { # ends_with CODE
    local code
    code=$(timeout "$patience" docker wait "$reader") || fail "it did not end within $patience s"
    ((code == $1)) || fail "its exit code is $code instead of $1"
}

has_recovered() {
    ends_with 0
    [[ $(log) == *'MongoDB cannot be reached'* ]] || fail 'it did not notice that the network was cut'
}

timed() { # timed WHAT COMMAND…
    local what=$1 start=$SECONDS
    shift
    "$@"
    docker rm "$reader" >/dev/null
    echo "== $what: $((SECONDS - start)) s"
}

primary_cut_off_and_back() {
    local primary
    read_epochs 20 60
    primary=$(log | sed -n 's/^stopped before .* the primary is //p')
    cut_off "$primary"
    go_on
    await 60 # the others have elected one of them
    connect "$primary"
    go_on
    has_recovered
}

all_cut_off() {
    local deadline=4 start said expected
    expected='mongodb://reader:\*\*\*@mongo1,mongo2,mongo3/storeds/digits_train\?.*'
    expected+="tried: [0-9]+ attempts within [0-9.]+ s; the deadline is timeoutMS=${deadline}000"
    read_epochs 20 --timeout-ms "${deadline}000"
    cut_off "${nodes[@]}"
    start=$SECONDS
    go_on
    ends_with 1
    ((SECONDS - start <= deadline + slack)) || fail "it ended $((SECONDS - start)) s after, with a deadline of $deadline s"
    said=$(log)
    (($(grep --count '^storeds.errors.UnavailableError: mongodb' <<<"$said") == 1)) || fail 'it does not report exactly one error'
    [[ ${said##*$'\n'} =~ ^storeds.errors.UnavailableError:\ $expected ]] || fail 'the error does not say what was tried'
    [[ $said != *'the password'* ]] || fail 'it shows the password'
    connect "${nodes[@]}"
}

all_cut_off_and_back() {
    read_epochs 20
    cut_off "${nodes[@]}"
    go_on
    sleep 5 # seconds without a network
    connect "${nodes[@]}"
    has_recovered
}

# First, because while nodes come back another may become the primary at any moment.
timed 'the primary off the network in mid-epoch and back, the same digest' primary_cut_off_and_back
timed 'all nodes off the network for good in mid-epoch, one error in time' all_cut_off
# This one can begin, so the error before it came from the network.
timed 'all nodes off the network for 5 s in mid-epoch, the same digest' all_cut_off_and_back
