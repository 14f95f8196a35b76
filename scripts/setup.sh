#!/usr/bin/env bash
# Brings a Debian or Ubuntu machine to where otelprof runs from this tree: system packages, .venv, compiled BPF programs.
#   setup.sh run    what `make up` needs
#   setup.sh dev    that and what `make test` and `make lint` need
# Idempotent: does nothing where nothing is missing. Without the right to install packages it prints the exact command.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-run}
step() { echo "setup: $*" >&2; }

missing=()
need() { # need PACKAGE COMMAND-OR-FILE
    command -v "$2" >/dev/null 2>&1 || [ -e "$2" ] || missing+=("$1")
}
need clang clang
need llvm llvm-strip
need libbpf-dev /usr/include/bpf/bpf_helpers.h
need make make
need g++ c++
if [ "$want" = dev ]; then
    need chromium chromium
    need bpftool /usr/sbin/bpftool
fi

python=
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "setup: Python 3.11 or newer is needed and none was found: install one (Debian 12, Ubuntu 24.04 and newer bring it), or set PYTHON=/path/to/python" >&2
    exit 1
fi
"$python" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)

if [ ${#missing[@]} -gt 0 ]; then
    install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null; then
        echo "setup: please install: ${missing[*]} (names are Debian's)" >&2
        exit 1
    elif [ "$(id -u)" = 0 ]; then
        sudo=()
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo=(sudo)
    else
        echo "setup: packages are missing and this user may not install them; run:" >&2
        echo "    sudo apt-get update && sudo ${install[*]}" >&2
        exit 1
    fi
    step "installing ${missing[*]}"
    log=$(mktemp)
    if ! { "${sudo[@]}" apt-get update -q && DEBIAN_FRONTEND=noninteractive "${sudo[@]}" "${install[@]}"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        echo "setup: the packages could not be installed; run: ${sudo[*]} ${install[*]}" >&2
        exit 1
    fi
    rm -f "$log"
fi

[ -x .venv/bin/python ] || { step "making .venv with $("$python" -V)"; "$python" -m venv .venv; }
extras=backend
[ "$want" = dev ] && extras=backend,dev
stamp=.venv/.setup-$want
sources=(pyproject.toml CMakeLists.txt bpf)
if [ ! -e "$stamp" ] || [ -n "$(find "${sources[@]}" -newer "$stamp" -print -quit)" ]; then
    step "installing otelprof[$extras] into .venv and compiling the BPF programs (the first time downloads about 250 MB)"
    .venv/bin/python -m pip install -q --disable-pip-version-check "scikit-build-core>=1.0" "cmake>=3.20" ninja
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e ".[$extras]"
    touch "$stamp"
    [ "$want" = dev ] && touch .venv/.setup-run
fi
exit 0
