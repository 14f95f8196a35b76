#!/usr/bin/env bash
# Brings a Debian or Ubuntu machine to where otelprof runs from this tree: system packages, .venv, compiled BPF programs.
#   setup.sh run    what `make up` needs
#   setup.sh dev    that and what `make test` and `make lint` need
# Idempotent: does nothing where nothing is missing, and goes on where a run was interrupted. Without the right to install
# packages it prints the exact command. PYTHON=/path/to/python chooses the Python that .venv is made with.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-run}

say() { echo "setup: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

# --- what is missing -------------------------------------------------------------------------------------------------

missing=()  # packages without which nothing goes
optional=() # packages whose tests are skipped without them

present() { # present COMMAND-OR-PATTERN…: whether one of them is there
    local place
    for place in "$@"; do
        if command -v "$place" >/dev/null || compgen -G "$place" >/dev/null; then return 0; fi
    done
    return 1
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() { # sets python, or leaves it empty
    local candidate
    python=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if recent "$candidate"; then
            python=$candidate
            return
        fi
    done
}

no_python() {
    fail "Python 3.11 or newer is needed and ${PYTHON:-python3} isn't it: Debian 12, Ubuntu 24.04 and newer bring it;" \
        "elsewhere set PYTHON=/path/to/python"
}

list_missing() {
    present clang || missing+=(clang)
    present llvm-strip || missing+=(llvm)
    present /usr/include/bpf/bpf_helpers.h || missing+=(libbpf-dev)
    present '/usr/lib*/libbpf.so.1' '/usr/lib/*/libbpf.so.1' || missing+=(libbpf1)
    present make || missing+=(make)
    present c++ || missing+=(g++)
    if [ "$want" = dev ]; then
        present chromium || optional+=(chromium)
        present bpftool /usr/sbin/bpftool || optional+=(bpftool)
    fi
    find_python
    if [ -z "$python" ]; then
        if [ -n "${PYTHON:-}" ] || present python3; then no_python; fi
        missing+=(python3 python3-venv)
    elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
        missing+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv")
    fi
}

# --- system packages -------------------------------------------------------------------------------------------------

may_install() { # sets sudo (a command's beginning); false where this user may not
    sudo=()
    if [ "$(id -u)" = 0 ]; then return 0; fi
    sudo=(sudo)
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }
}

apt_get() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }

install_packages() { # install_packages PACKAGE…: false where that didn't work
    local log status=0
    say "installing $*"
    log=$(mktemp)
    # dpkg --configure ends what an interrupted run left half done
    { "${sudo[@]}" dpkg --configure -a && apt_get update && apt_get install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null || status=1
    if [ "$status" != 0 ]; then
        grep -E '^(E:|W:|dpkg:|sudo:)' "$log" | tail -n 6 >&2 || tail -n 6 "$log" >&2
    fi
    rm -f "$log"
    return "$status"
}

by_hand() { # by_hand PACKAGE…: the command to type
    local as=
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then as='sudo '; fi
    echo "${as}apt-get update && ${as}apt-get install -y --no-install-recommends $*"
}

install_missing() {
    command -v apt-get >/dev/null || fail "please install (Debian's names): ${missing[*]}"
    may_install || fail "packages are missing and this user may not install them; run$(as_root): $(by_hand "${missing[@]}")"
    install_packages "${missing[@]}" ||
        fail "the packages could not be installed; when the lines above are mended, run: $(by_hand "${missing[@]}")"
}

as_root() { if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then echo " as root"; fi; }

install_optional() { # one by one, since not every distribution has each
    local package
    for package in "${optional[@]}"; do
        if command -v apt-get >/dev/null && may_install && install_packages "$package"; then continue; fi
        say "without $package some tests are skipped; to have it, run$(as_root): $(by_hand "$package")"
    done
}

# --- .venv -----------------------------------------------------------------------------------------------------------

whole_venv() { # it runs, is recent, has pip, and belongs to this folder (its scripts name it)
    .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
        grep -qF "$PWD/.venv/bin/python" .venv/bin/pip
}

make_venv() {
    if [ -e .venv ]; then say "the .venv here is unfinished, moved or of a Python before 3.11: making it anew"; fi
    rm -rf .venv
    say "making .venv with $("$python" -V)"
    "$python" -m venv .venv || fail "no virtual environment could be made: see above"
}

pip_install() {
    .venv/bin/python -m pip install -q --disable-pip-version-check "$@" ||
        fail "the Python packages could not be installed: the lines above say why; mend it and run it again"
}

install_project() {
    local extras=backend,demangle
    [ "$want" = run ] || extras+=,dev
    say "installing otelprof[$extras] into .venv and compiling the BPF programs (the first time downloads about 300 MB)"
    pip_install "scikit-build-core>=1.0" "cmake>=3.20" ninja
    pip_install --no-build-isolation -e ".[$extras]"
}

# ---------------------------------------------------------------------------------------------------------------------

list_missing
if [ ${#missing[@]} -gt 0 ]; then
    install_missing
    find_python
    [ -n "$python" ] || no_python
fi
whole_venv || make_venv
stamp=.venv/.setup-$want
if [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml CMakeLists.txt bpf -newer "$stamp" -print -quit)" ]; then
    install_optional
    begin=$(mktemp) # sources that change meanwhile are seen by the next run
    install_project
    mv "$begin" "$stamp"
    if [ "$want" = dev ]; then touch -r "$stamp" .venv/.setup-run; fi
    say "ready"
fi
