#!/usr/bin/env bash
# Installs a wheel into an empty virtual environment and runs its demo.
#
#   test_wheel.sh PYTHON TORCH WHEEL    TORCH is a requirement, such as torch==2.13.0
set -euo pipefail

python=${1:?PYTHON} torch=${2:?TORCH} wheel=$(realpath "${3:?WHEEL}")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$torch"
"$work/venv/bin/python" -m pip install --quiet "$wheel"
cd "$work"
# Without extras: the package imports, loads no engine, and its command starts.
venv/bin/python -c 'import sys, storeds; engines = {"h5py", "lmdb", "pymongo", "torch"} & set(sys.modules); sys.exit(f"import storeds loads {engines}" if engines else 0)'
venv/bin/storeds --help >/dev/null
venv/bin/python -m pip install --quiet "$wheel[demo]"
bash "$here/check_system.sh" server venv/bin/python
venv/bin/storeds demo
