#!/usr/bin/env bash
# Sets up the virtual environment with the pinned versions. `make install` calls it when something changed.
#
# What it needs from the machine and checks first, because pip's own messages about them are unreadable: Linux on x86-64
# (hivemind ships its p2p daemon as a binary for that), Python 3.11+ with venv, and what fastecdsa needs to compile:
# a C compiler, the GMP headers and the Python headers. As root on a machine with apt it installs what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such program"
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is older than 3.11; name a newer one"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

# Compiles a program that only includes the given header; $2 may hold a -I flag.
header_found() { printf '#include <%s>\nint main(void){return 0;}\n' "$1" | "${CC:-gcc}" ${2:-} -x c -fsyntax-only - 2>/dev/null; }

# Debian package names of everything that is missing for interpreter $1, one per line.
missing_packages() {
    local python=$1 version include
    if [ -z "$python" ]; then
        printf '%s\n' python3 python3-venv python3-dev
    else
        version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        # The distribution's default interpreter has unversioned package names too; those always exist.
        if [ "$("$python" -c 'import sys; print(sys.base_prefix)')" = /usr ] && [ "$(readlink -f /usr/bin/python3)" = "/usr/bin/$version" ]; then
            version=python3
        fi
        "$python" -c 'import venv, ensurepip' 2>/dev/null || echo "$version-venv"
    fi
    command -v "${CC:-gcc}" >/dev/null || { printf '%s\n' gcc libc6-dev libgmp-dev; [ -z "$python" ] || echo "$version-dev"; return; }
    header_found stdio.h || echo libc6-dev
    header_found gmp.h || echo libgmp-dev
    if [ -n "$python" ]; then
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        header_found Python.h "-I$include" || echo "$version-dev"
    fi
}

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || fail "blockswarm runs on Linux x86-64 only (this is $(uname -s) $(uname -m)): hivemind ships its p2p daemon for that alone"

python=$(find_python)
missing=$(missing_packages "$python" | sort -u | tr '\n' ' ' | sed 's/ *$//')
if [ -n "$missing" ]; then
    say "missing on this machine: $missing"
    if ! command -v apt-get >/dev/null; then
        fail "install a C compiler, the GMP headers, and Python 3.11+ with its headers and venv (Debian names: $missing), then run make again"
    elif [ "$(id -u)" != 0 ]; then
        fail "install them and run make again:  sudo apt-get update && sudo apt-get install -y $missing"
    fi
    say "running as root, so installing them: apt-get update && apt-get install -y $missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # a list of package names
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing || fail "apt-get could not install: $missing"
    python=$(find_python)
    missing=$(missing_packages "$python" | sort -u | tr '\n' ' ' | sed 's/ *$//')
    [ -n "$python" ] || fail "apt's python3 is older than 3.11: install a newer Python and name it with PYTHON=/path/to/python3.x"
    [ -z "$missing" ] || fail "still missing after apt-get install: $missing"
fi

# An environment whose interpreter is gone or too old (the system's Python was upgraded) is made anew.
if [ -e "$venv" ] && ! new_enough "$venv/bin/python"; then
    say "$venv does not run any more: making it anew"
    rm -rf "$venv"
fi
if [ ! -e "$venv" ]; then
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

# Variables reach every pip command, also the ones pip starts itself to build a source package.
export PIP_CONSTRAINT=$PWD/constraints.txt PIP_BUILD_CONSTRAINT=$PWD/constraints.txt
# hivemind's source package would download the daemon while building, that of atheris needs clang
export PIP_ONLY_BINARY=hivemind,atheris
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

say "installing about a hundred pinned packages, torch among them, quietly (the first time this takes two to ten minutes)"
# pip first: the venv's own may be too old to read a build constraint.
env -u PIP_BUILD_CONSTRAINT "$venv/bin/python" -m pip install -qq pip setuptools wheel
"$venv/bin/python" -m pip install -qq --editable '.[dev,experiments,fuzz]' \
    || fail "pip could not install the packages; the lines above say why"
version=$("$venv/bin/blockswarm" --version) || fail "the installed command does not start; the lines above say why"
say "ready: $version in $venv"
