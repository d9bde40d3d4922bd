#!/usr/bin/env bash
# The service `s3-training`: publishes two versioned stores in S3, and trains from them on a machine without a copy.
set -euo pipefail

python docker/pack_digits.py
rm -r "$STOREDS_STAGE"
python examples/train.py --config docker/digits_s3.toml --epochs 4 --min-accuracy 0.9
storeds stage --list
