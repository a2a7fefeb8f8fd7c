#!/bin/sh
# Install what runs on an NVIDIA GPU into a virtual environment: tools/install_cuda.sh [.venv]
#
# First symdnn with its extra "cuda", all of which has wheels. Then PyCUDA, which is built from
# source and wants CUDA's headers, and libcuda and libcurand to link with; here they are NVIDIA's
# wheels, so that no CUDA toolkit is needed. What is needed: g++, Python's own headers
# (python3-dev), some minutes. No GPU: what is built here runs where the driver is. Without a
# compiler, or where the build fails, symdnn runs on a GPU all the same, by cuda-bindings.
set -e
bin=$(cd "${1:-.venv}/bin" && pwd)
cd "$(dirname "$0")/.."

"$bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[cuda]'

without() {
    echo "PyCUDA was not installed: $1." >&2
    echo "symdnn goes on without it: cuda-bindings drives the GPU, and arrays on the GPU are" >&2
    echo "symdnn.gpu.DeviceArray, not PyCUDA's GPUArray. docs/gpu.md, Installing, says how to" >&2
    echo "have PyCUDA." >&2
    exit 0
}

# It may be there: conda's, or an earlier run's.
"$bin/python" -m pip --disable-pip-version-check show --quiet pycuda >/dev/null 2>&1 && exit 0

headers=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
command -v "${CXX:-g++}" >/dev/null 2>&1 || without "there is no C++ compiler (${CXX:-g++})"
command -v "${CC:-gcc}" >/dev/null 2>&1 || without "there is no C compiler (${CC:-gcc})"
[ -e "$headers/Python.h" ] || without "there is no $headers/Python.h (python3-dev)"

"$bin/python" -m pip install --quiet --disable-pip-version-check \
    'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-cuda-profiler-api==13.*' \
    'nvidia-curand==10.*'
cuda=$("$bin/python" -c 'import nvidia.cu13; print(list(nvidia.cu13.__path__)[0])')

# To link with. The real libcuda.so.1 is the driver's; this file only names it.
ln -sf libcurand.so.10 "$cuda/lib/libcurand.so"
printf '' | "${CC:-gcc}" -shared -Wl,-soname,libcuda.so.1 -o "$cuda/lib/libcuda.so" -x c -

CPATH="$cuda/include${CPATH:+:$CPATH}" \
LDFLAGS="-L$cuda/lib -Wl,--no-as-needed,-rpath,$cuda/lib $LDFLAGS" \
    "$bin/python" -m pip install --disable-pip-version-check --editable '.[pycuda]' ||
    without "its build failed, as pip says above"
