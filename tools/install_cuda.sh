#!/bin/sh
# Install symdnn with its extra "cuda" into a virtual environment: tools/install_cuda.sh [.venv]
#
# PyCUDA is built from source. It wants CUDA's headers, and libcuda and libcurand to link with;
# here they are NVIDIA's wheels, so that no CUDA toolkit is needed. What is needed: g++, Python's
# own headers (python3-dev), some minutes. No GPU: what is built here runs where the driver is.
set -e
bin=$(cd "${1:-.venv}/bin" && pwd)
cd "$(dirname "$0")/.."

"$bin/python" -m pip install --quiet --disable-pip-version-check \
    'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-cuda-profiler-api==13.*' \
    'nvidia-curand==10.*'
cuda=$("$bin/python" -c 'import nvidia.cu13; print(list(nvidia.cu13.__path__)[0])')

# To link with. The real libcuda.so.1 is the driver's; this file only names it.
ln -sf libcurand.so.10 "$cuda/lib/libcurand.so"
printf '' | "${CC:-gcc}" -shared -Wl,-soname,libcuda.so.1 -o "$cuda/lib/libcuda.so" -x c -

CPATH="$cuda/include${CPATH:+:$CPATH}" \
LDFLAGS="-L$cuda/lib -Wl,--no-as-needed,-rpath,$cuda/lib $LDFLAGS" \
    "$bin/python" -m pip install --disable-pip-version-check --editable '.[cuda]'
