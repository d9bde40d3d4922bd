#!/usr/bin/env bash
# The service `tests`: runs the integration tests, packs a store, and trains on it.
set -euo pipefail

database=mongo1,mongo2,mongo3/storeds
options='replicaSet=rs0&authSource=admin'
writer="mongodb://writer:$STOREDS_WRITER_PASSWORD@$database"
reader="mongodb://reader:$STOREDS_READER_PASSWORD@$database"

export STOREDS_TEST_MONGODB_URI="$writer?$options"
export STOREDS_TEST_MONGODB_READONLY_URI="$reader?$options"
export DIGITS_URL="$writer/digits_{split}?$options"

timed() { # timed WHAT COMMAND…
    local what=$1 start=$SECONDS
    shift
    "$@"
    echo "== $what: $((SECONDS - start)) s"
}

run() {
    timed 'integration tests' python -m pytest -p no:cacheprovider tests/integration
    timed 'packing as the user writer' python docker/pack_digits.py
    timed 'training as the user reader' \
        python examples/train.py --config docker/digits.toml --epochs 4 --min-accuracy 0.9
}

# The output of a failed test includes variables such as URIs, complete or truncated.
run 2>&1 | sed -uE 's#(writer|reader):[A-Za-z0-9._~-]+#\1:***#g; s#[A-Za-z0-9._~*-]*@mongo1#***@mongo1#g'
