#!/usr/bin/env bash
# Builds for aarch64 on an x86-64 machine and runs tests under qemu:
#
#   tools/aarch64.sh                     lints and every test of koudai-kernels, on three processors:
#                                        without dot products, with them, with matrix products too
#   tools/aarch64.sh PROCESSOR ARGS...   `cargo ARGS...` for this target, running what it builds on
#                                        that processor, as in `tools/aarch64.sh max test -p koudai`
#
# Uses what is there: a toolchain with this target's standard library (`rustup target add
# aarch64-unknown-linux-gnu`), aarch64-linux-gnu-gcc, qemu-aarch64-static. What is missing comes from
# Debian's packages, unpacked under target/aarch64: nothing is installed, and root isn't needed.
# Emulation shows that results are right and that no table uses what its processor lacks. It says
# nothing about speed.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")/aarch64
export CARGO_TARGET_DIR
root=$CARGO_TARGET_DIR/root

# Unpacks packages, and those they need that this machine lacks, into $root. Package lists of its own
# know of arm64 without the machine's having to.
fetch() {
    mkdir -p "$root" "$root".apt/{lists,cache/archives,debs}/partial
    local signed='' keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keys" ] && signed=[signed-by=$keys]
    apt-get update --print-uris |
        sed -nE "s,^'([^']*/debian(-security)?/)dists/([^/]+)/InRelease'.*,deb $signed \1 \3 main,p" \
            >"$root".apt/sources
    local apt=(apt-get -qq -o Dir::State::lists="$root.apt/lists" -o Dir::Cache="$root.apt/cache"
        -o Dir::Etc::sourcelist="$root.apt/sources" -o Dir::Etc::sourceparts=/dev/null
        -o APT::Architectures::=amd64 -o APT::Architectures::=arm64
        -o Acquire::Languages=none -o APT::Sandbox::User=root -o Debug::NoLocking=true)
    "${apt[@]}" update
    local packages
    packages=$("${apt[@]}" install --print-uris --yes --no-install-recommends "$@" |
        sed -nE "s,^'[^']*' ([^_]*)_.*_(amd64|all)\.deb .*,\1,p")
    case $packages in *libstd-rust-web-dev*) packages="$packages libstd-rust-web-dev:arm64" ;; esac
    # shellcheck disable=SC2086 # a list of names
    (cd "$root".apt/debs && "${apt[@]}" download $packages)
    local deb
    for deb in "$root".apt/debs/*.deb; do
        # One of qemu's thirty processors is wanted.
        dpkg-deb --fsys-tarfile "$deb" |
            tar -x -C "$root" --exclude=./usr/share --exclude='./usr/bin/qemu-[!a]*'
        rm "$deb"
    done
    # Linker scripts name libraries by absolute path.
    grep -lIs 'GNU ld script' "$root"/usr/aarch64-linux-gnu/lib/*.so |
        xargs -r sed -i 's, /usr/aarch64-linux-gnu/lib/, ,g'
}

# A command that runs the unpacked program of the same name with its libraries.
wrap() {
    mkdir -p "$root/bin"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@" --sysroot %q\n' \
        "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/$1" "$root/usr" >"$root/bin/$1"
    chmod +x "$root/bin/$1"
}

find_tools() {
    local wanted=()
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
        wanted+=(rustc-web libstd-rust-web-dev rust-web-clippy)
        export RUSTC=$root/bin/rustc CLIPPY_DRIVER=$root/bin/clippy-driver
    fi
    gcc=aarch64-linux-gnu-gcc libraries=/usr/aarch64-linux-gnu
    if ! command -v "$gcc" >/dev/null; then
        wanted+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
        gcc=$root/usr/bin/$gcc libraries=$root$libraries
    fi
    qemu=qemu-aarch64-static
    if ! command -v "$qemu" >/dev/null; then
        wanted+=(qemu-user-static)
        qemu=$root/usr/bin/$qemu
    fi
    [ ${#wanted[@]} -eq 0 ] && return
    if [ "$(cat "$root/unpacked" 2>/dev/null)" != "${wanted[*]}" ]; then
        command -v apt-get >/dev/null || { echo "needs ${wanted[*]}, or their like" >&2; exit 1; }
        rm -rf "$root" "$root".apt
        fetch "${wanted[@]}"
        wrap rustc
        wrap clippy-driver
        echo "${wanted[*]}" >"$root/unpacked"
    fi
}

find_tools
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L $libraries"

# Cargo for the target; programs run on processor $1.
on() {
    local processor=$1 command=$2
    shift 2
    QEMU_CPU=$processor cargo "$command" --target "$target" "$@"
}

if [ $# -gt 0 ]; then
    on "$@"
    exit
fi

if [ -n "${CLIPPY_DRIVER:-}" ]; then
    RUSTFLAGS=-Dwarnings RUSTC_WORKSPACE_WRAPPER=$CLIPPY_DRIVER \
        on max check -p koudai-kernels --all-targets --profile test
else
    on max clippy -p koudai-kernels --all-targets -- -D warnings
fi

check() {
    local processor=$1 tables=$2 log=$CARGO_TARGET_DIR/$1.log
    echo "== $processor: $tables"
    on "$processor" test -p koudai-kernels --lib --test it -- --nocapture 2>&1 | tee "$log"
    # A table that went undetected would pass unseen.
    grep -q "tables: $tables$" "$log" || { echo "$processor: other tables ran" >&2; exit 1; }
}
check cortex-a72 "scalar neon"
check cortex-a76 "scalar neon dotprod"
check max "scalar neon dotprod i8mm"
