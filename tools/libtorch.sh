#!/usr/bin/env bash
# Puts libtorch, which koudai-train is built on, into target/libtorch: the processor's part of PyTorch's
# package. To train on a GPU, install `torch` of this version with pip and build with
# LIBTORCH_USE_PYTORCH=1 instead.
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.13.0 # the one that tch 0.26 binds to
to=$PWD/target/libtorch
[ "$(cat "$to/build-version" 2>/dev/null)" = "$version" ] && exit
rm -rf "$to" "$to.partial"
mkdir -p "$to.partial/lib"
cd "$to.partial"

# What packages depend on isn't wanted: on Linux that is 4 GB for GPUs.
wheel() {
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --python-version 3.11 --dest wheels "$@"
}
wheel "torch==$version"
# Linked, though unused without a GPU.
[ "$(uname)" = Linux ] && wheel 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-cupti==13.*'

python3 - <<'PYTHON'
import glob, pathlib, shutil, zipfile

LIBRARIES = ("libc10.", "libtorch_cpu.", "libtorch.dylib", "libgomp", "libomp", "libcudart.", "libcupti.")
for wheel in glob.glob("wheels/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = pathlib.PurePosixPath(name)
            if name.startswith("torch/include/"):
                archive.extract(name)
            elif path.parent.name == "lib" and path.name.startswith(LIBRARIES):
                with archive.open(name) as source, open(f"lib/{path.name}", "wb") as out:
                    shutil.copyfileobj(source, out)
PYTHON
mv torch/include include
rm -rf torch wheels
# What -ltorch finds; on Linux the library of this name would ask for the GPU's.
[ -e lib/libtorch.dylib ] || ln -s libtorch_cpu.so lib/libtorch.so
echo "$version" >build-version
mv "$to.partial" "$to"
