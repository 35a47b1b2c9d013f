#!/usr/bin/env bash
# Runs the tests of koudai-kernels on processors of Intel that Bochs emulates:
#
#   tools/x86-emulated.sh              arrow_lake (AVX-VNNI, no AVX-512) and sapphire_rapids (AMX)
#   tools/x86-emulated.sh PROCESSOR    one of them
#
# Needs apt-get, python3 and a Debian mirror that has trixie, whatever the machine's own release is.
# Packages (70 MB) are unpacked under target/x86-emulated: nothing is installed, and root isn't needed.
# Each processor boots Linux and takes some minutes, so CI doesn't run this.
#
# Emulation shows that results are right and that no table uses what its processor lacks. It says
# nothing about speed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/x86-emulated
root=$work/root
mkdir -p "$work"
# AMX needs a kernel that can be told that a processor has XFD, which Bochs lacks.
kernel=6.18.15+deb13-cloud-amd64

fetch() {
    local apt=$work/apt keys=/usr/share/keyrings/debian-archive-keyring.gpg signed=''
    mkdir -p "$root" "$apt"/{lists,cache/archives,debs}/partial
    [ -e "$keys" ] && signed=[signed-by=$keys]
    local mirror
    mirror=$(apt-get update --print-uris | sed -nE "s,^'([^']*/debian/)dists/.*,\1,p" | head -1)
    printf "deb $signed $mirror %s main\n" trixie trixie-backports >"$apt/sources"
    : >"$apt/status" # as if nothing were installed: programs come with all their libraries
    local get=(apt-get -qq -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
        -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources"
        -o Dir::Etc::sourceparts=/dev/null -o Acquire::Languages=none -o APT::Sandbox::User=root
        -o Debug::NoLocking=true)
    "${get[@]}" update
    local packages
    packages=$("${get[@]}" install --print-uris --yes --no-install-recommends \
        bochs bochs-term xorriso isolinux syslinux-common busybox-static |
        sed -nE "s,^'[^']*' ([^_]*)_.*\.deb .*,\1,p")
    # shellcheck disable=SC2086 # a list of names
    (cd "$apt/debs" && "${get[@]}" download $packages "linux-image-$kernel")
    local deb
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" |
            tar -x -C "$root" --exclude=./usr/lib/modules --exclude=./usr/share/{doc,man,locale,icons}
        rm "$deb"
    done
    correct_bochs
    touch "$root/complete"
}

# Bochs 3.0 and 3.1 take the signed bytes of TDPBSSD for unsigned ones, and the `amx` table, which
# checks a product before it is offered, isn't. In the copy that runs here, zero extensions become sign
# extensions and logical shifts arithmetic ones.
correct_bochs() {
    python3 - "$root/usr/bin/bochs-bin" <<'PYTHON'
import hashlib, sys
path = sys.argv[1]
program = bytearray(open(path, "rb").read())
known = "07fc8c4bee6efb24d690302db0f07159ad5a153c88bca64bb9345a4263ceb5aa"
if hashlib.sha256(program).hexdigest() != known:
    sys.exit("not the bochs 3.0+dfsg-1 that this script knows")
for at in (0x2743BF, 0x2743C2, 0x2743C6, 0x2743C9, 0x2743DE, 0x2743F2):
    assert program[at : at + 2] == b"\x0f\xb6"  # movzx
    program[at + 1] = 0xBE  # movsx
for at in (0x2743D3, 0x2743E7):
    assert program[at] == 0xC1 and program[at + 2] == 24  # shr, by 24
    program[at + 1] |= 0x10  # sar
open(path, "wb").write(program)
PYTHON
}

# Runs an unpacked program with its own libraries.
libraries=$root/usr/lib/x86_64-linux-gnu
loaded=("$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/pulseaudio")

# A disc that boots Linux into the tests, which are linked statically.
make_disc() {
    local disc=$work/disc initrd=$work/initrd test
    rm -rf "$disc" "$initrd"
    mkdir -p "$disc" "$initrd"/{bin,proc}
    cp "$root/usr/bin/busybox" "$initrd/bin"
    RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" cargo test -p koudai-kernels \
        --target x86_64-unknown-linux-gnu --target-dir "$work/target" --lib --test it --no-run \
        --message-format=json | sed -nE 's/.*"executable":"([^"]+)".*/\1/p' >"$work/tests"
    while read -r test; do cp "$test" "$initrd/tests-$(basename "$test")"; done <"$work/tests"
    cat >"$initrd/init" <<'INIT'
#!/bin/busybox sh
for test in /tests-*; do
    RUST_TEST_THREADS=1 $test --nocapture || failed=1
done
/bin/busybox sleep 1
echo "finished: ${failed:-0}"
/bin/busybox sleep 1000
INIT
    chmod +x "$initrd/init"
    (cd "$initrd" && find . | bin/busybox cpio -o -H newc 2>/dev/null) >"$disc/initrd"
    cp "$root/boot/vmlinuz-$kernel" "$disc/vmlinuz"
    cp "$root/usr/lib/ISOLINUX/isolinux.bin" "$root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$disc"
    cat >"$disc/isolinux.cfg" <<ISOLINUX
default linux
label linux
kernel /vmlinuz
append initrd=/initrd console=ttyS0 quiet panic=-1 mitigations=off nokaslr lsm= audit=0 acpi=off $1
ISOLINUX
    "${loaded[@]}" "$root/usr/bin/xorriso" -as mkisofs -quiet -o "$work/disc.iso" -b isolinux.bin -c boot.cat \
        -no-emul-boot -boot-load-size 4 -boot-info-table "$disc" 2>/dev/null
}

# check PROCESSOR TABLES [KERNEL OPTIONS]
check() {
    local processor=$1 tables=$2 serial=$work/$1.serial
    echo "== $processor: $tables"
    make_disc "${3:-}"
    cat >"$work/bochsrc" <<BOCHS
display_library: term
romimage: file=$root/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$root/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=$processor, ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$serial
log: $work/bochs.log
panic: action=fatal
BOCHS
    rm -f "$serial"
    touch "$serial"
    TERM=xterm LTDL_LIBRARY_PATH=$libraries/bochs/plugins \
        "${loaded[@]}" "$root/usr/bin/bochs-bin" -q -f "$work/bochsrc" </dev/null >"$work/screen" 2>&1 &
    local bochs=$!
    # It draws on a terminal of its own, and stops when nobody reads that.
    local screen=''
    while [ -z "$screen" ] && kill -0 $bochs; do
        sleep 1
        screen=$(grep -aom1 '/dev/pts/[0-9]*' "$work/screen" || true)
    done
    cat "$screen" >/dev/null 2>&1 &
    timeout 1800 tail -n +1 -f --pid=$bochs "$serial" | sed '/^finished:/q' || true
    kill -9 $bochs 2>/dev/null || true
    grep -q '^finished: 0' "$serial" || { echo "$processor: tests failed" >&2; exit 1; }
    # A table that went undetected would pass unseen.
    grep -q "tables: $tables.\?$" "$serial" || { echo "$processor: other tables ran" >&2; exit 1; }
}

[ -e "$root/complete" ] || fetch
case ${1:-both} in
arrow_lake | both) check arrow_lake "scalar avx2 avxvnni" ;;&
sapphire_rapids | both)
    # 324 is XFD; Bochs can't resume from system management mode with 5-level page tables.
    check sapphire_rapids "scalar avx2 avxvnni avx512 amx" "setcpuid=324 no5lvl"
    ;;
esac
