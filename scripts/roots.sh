#!/usr/bin/env bash
# Provides interpreters that the machine hasn't, for the tests: Debian's newer suites as unpacked folders (trixie: 3.13 and its
# debug build; forky: 3.13, 3.14, 3.15), and builds of our own. Nothing of the machine's packages is touched; what is there
# already stays. Without root or network it says what is missing, and the tests go on without.
#   roots.sh                 trixie, forky (some 20 s and 150 to 280 MB each)
#   roots.sh 3.13t musl      those two, built from Debian's source of 3.13 (4 to 7 minutes each; musl needs musl-tools)
# OTELPROF_ROOTS names another folder than ~/.cache/otelprof/roots.
set -euo pipefail
roots=${OTELPROF_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/otelprof/roots}

say() { echo "roots: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

mirror() { # the address that the machine itself takes packages from
    {
        awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources
        awk '$1 == "deb" { print $(NF > 3 && $2 ~ /^\[/ ? 3 : 2); exit }' /etc/apt/sources.list
    } 2>/dev/null | sed -n 1p || true
}

packages_of() {
    case $1 in
    trixie) echo python3.13 python3.13-dbg python3.13-nopie libpython3.13 ;;
    forky) echo python3.13 python3.14 python3.15 libpython3.14 libpython3.15 ;;
    esac
}

apt_folder() { # apt_folder FOLDER SUITE KIND…: a package state of its own, with an index of these kinds (deb, deb-src)
    local folder=$1 suite=$2 address kind
    shift 2
    address=$(mirror)
    [ -n "$address" ] || fail "no package mirror in /etc/apt: only Debian is supported"
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/none"
    : >"$folder/status"
    for kind in "$@"; do
        echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $address $suite main"
    done >"$folder/sources.list"
    printf 'Dir::%s;\n' "State::lists \"$folder/lists\"" "State::status \"$folder/status\"" "Cache \"$folder/cache\"" \
        "Etc::sourcelist \"$folder/sources.list\"" "Etc::sourceparts \"$folder/none\"" \
        "Etc::preferencesparts \"$folder/none\"" >"$folder/apt.conf"
    echo 'APT::Sandbox::User "root";' >>"$folder/apt.conf"
    APT_CONFIG=$folder/apt.conf apt-get -qq update || fail "$suite: the package index can't be read"
}

unpacked() { # unpacked SUITE: a folder to change the root to
    local suite=$1 folder=$roots/$1 archive place
    local part=$folder/part
    [ -e "$folder/root" ] && return
    rm -rf "$part"
    apt_folder "$part" "$suite" deb
    # shellcheck disable=SC2046
    APT_CONFIG=$part/apt.conf apt-get -qq install -y -d --no-install-recommends $(packages_of "$suite") >/dev/null
    mkdir -p "$part/root"
    for archive in "$part"/cache/archives/*.deb; do dpkg-deb -x "$archive" "$part/root"; done
    for place in bin sbin lib lib64; do
        [ -e "$part/root/$place" ] || { mkdir -p "$part/root/usr/$place" && ln -s "usr/$place" "$part/root/$place"; }
    done
    mkdir -p "$part/root/proc" "$part/root/dev" "$part/root/tmp"
    mv "$part/root" "$folder/root"
    rm -rf "$part"
}

source_of_313() { # unpacks the source into the current folder
    apt_folder "$PWD/apt" trixie deb-src
    (cd apt && APT_CONFIG=$PWD/apt.conf apt-get -qq source --download-only python3.13)
    tar xf apt/python3.13_*.orig.tar.xz --strip-components=1
}

musl_compiler() { # prints the path of a compiler that CPython's configure takes
    command -v musl-gcc >/dev/null || fail "musl: musl-gcc is needed: apt-get install musl-tools"
    mkdir -p headers
    ln -sfn /usr/include/linux headers/linux
    ln -sfn /usr/include/asm-generic headers/asm-generic
    ln -sfn "/usr/include/$(gcc -print-multiarch)/asm" headers/asm
    cat >cc <<END
#!/bin/sh
case " \$* " in *" --print-multiarch "*) exit 0 ;; esac
exec musl-gcc -idirafter $PWD/headers "\$@"
END
    chmod +x cc
    echo "$PWD/cc"
}

built() { # built NAME: a prefix with bin/python3, of 3.13 free-threaded or on musl
    local prefix=$roots/$1 work
    [ -x "$prefix/bin/python3" ] && return
    work=$(mktemp -d)
    (
        cd "$work"
        source_of_313
        local options=(--disable-gil)
        [ "$1" = musl ] && options=(CC="$(musl_compiler)" --with-pkg-config=no)
        ./configure -q "${options[@]}" --prefix="$prefix" --without-ensurepip --disable-test-modules
        nice make -s -j2
        make -s install
    ) >"$roots/$1.log" 2>&1 || fail "$1 could not be built: see $roots/$1.log"
    rm -rf "$work"
}

mkdir -p "$roots"
[ "$(id -u)" = 0 ] || fail "changing the root needs root: sudo make roots"
[ $# -gt 0 ] || set -- trixie forky
for wanted in "$@"; do
    case $wanted in
    trixie | forky) unpacked "$wanted" ;;
    3.13t | musl) built "$wanted" ;;
    *) fail "no root $wanted; there are trixie, forky, 3.13t and musl" ;;
    esac
    say "$wanted is in $roots/$wanted"
done
