"""Runs the device text of kernels on a CPU: compiled by g++ behind ``host_shim.h``, and called by
``host_shim.cc``.

It finds wrong source before a GPU is at hand: indices, barriers, conversions, numerics. It says
nothing of speed or of races between blocks.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.gpu.codegen.launches import MOST_BLOCKS_BESIDE
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.error_codes import TICKET_COUNT, TICKETS_AT
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype

SHIM, RUNNER = ((Path(__file__).parent / f"host_shim.{end}").read_text() for end in ("h", "cc"))
AVAILABLE = shutil.which("g++") is not None
_FOLDER = Path(tempfile.gettempdir()) / "symdnn-emulated"
#: C's own headers, not the templates around them, which take g++ longer than a kernel does.
_COMMAND = ["g++", "-std=c++17", "-nostdinc++", "-O1", "-w", "-fwrapv", "-ffp-contract=off"]
#: Accesses are checked for their alignment, by a function of the runner's instead of a library's.
_COMMAND += [
    "-fsanitize=alignment",
    "-nodefaultlibs",
    "-Wl,--no-as-needed",
    "-lstdc++",
    "-lm",
    "-lc",
]
_COMMAND += ["-shared", "-fPIC", *(["-fuse-ld=gold"] if shutil.which("ld.gold") else [])]

_AFTER_COMMON = """
static inline float float_of(f16 h) { return (float)shim_bits<_Float16>(h.bits); }
static inline f16 f16_of(float x) { return {shim_bits<u16>((_Float16)x)}; }
static inline f16 f16_of(double x) { return {shim_bits<u16>((_Float16)x)}; }
static inline bf16 bf16_of(float x) {
  u32 b = shim_bits<u32>(x);
  if (x != x) return {(u16)((b >> 16) | 0x40)};
  return {(u16)((b + 0x7fff + ((b >> 16) & 1)) >> 16)};
}
"""


@cache
def library(source: str, name: str) -> Any:
    """The compiled kernel, as a function of (parameters, grid, block)."""
    _runner()
    together = any(word in source for word in ("__syncthreads", "__shfl"))
    wrapper = f"""
static void shim_call(const void* p) {{ {name}(*(const Parameters*)p); }}
extern "C" int emulate(const void* p, const unsigned* grid, const unsigned* block) {{
  return shim_emulate(shim_call, p, grid, block, {int(together)});
}}
"""
    found = _loaded("\n".join((SHIM, source, _AFTER_COMMON, wrapper)))
    return found.emulate


@cache
def _runner() -> Any:
    """What calls the kernels: names of it are found in the libraries that are loaded after it."""
    return _loaded(RUNNER.replace('#include "host_shim.h"', SHIM), ctypes.RTLD_GLOBAL)


def _loaded(text: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
    """The library of a program, compiled if it has not been."""
    key = "\0".join((*_COMMAND, RUNNER, text))
    path = _FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        _FOLDER.mkdir(exist_ok=True)
        _compile(text, path)
    return ctypes.CDLL(str(path), mode)


def _compile(text: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        code, out = Path(folder) / "kernel.cc", Path(folder) / "kernel.so"
        code.write_text(text)
        done = subprocess.run(
            [*_COMMAND, "-o", str(out), str(code)], capture_output=True, text=True
        )
        assert done.returncode == 0, f"g++ refused a kernel:\n{done.stderr[:4000]}"
        out.replace(path)


#: Bytes behind a workspace that are watched.
_GUARD_BYTES = 1024


class HostEnv:
    """A launch environment whose device is this machine's memory."""

    stream = 0

    def __init__(self, workspace_bytes: int = 0, node: int = 7, backwards: bool = False) -> None:
        self.node, self.backwards = node, backwards
        # It is at a multiple of 64 bytes, as in an arena, and what is behind it is another's.
        self._scratch = aligned(workspace_bytes + 64 + _GUARD_BYTES, 256)[64:]
        self._scratch[:] = 0xA5  # what a kernel finds in its workspace is not zero
        self._behind = self._scratch[workspace_bytes:]
        self._word = np.zeros(TICKETS_AT // 4 + TICKET_COUNT, np.int32)
        self.workspace = self._scratch.ctypes.data
        self.error_word = self._word.ctypes.data
        self.launched: list[str] = []

    @property
    def error(self) -> list[int]:
        """Code, node, value and limit in the error word."""
        return self._word[:4].tolist()

    def module(self, source: str, name: str, options: Any = ()) -> Any:
        self.launched.append(name)
        return library(source, name)

    def launch(self, function: Any, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        assert max((1, *grid[1:])) <= MOST_BLOCKS_BESIDE, f"a driver refuses the grid {grid}"
        parameters = np.frombuffer(args[0].tobytes(), np.uint8)
        three = [np.array((*sizes, 1, 1)[:3], np.uint32) for sizes in (grid, block)]
        backwards, misaligned = (
            ctypes.c_int.in_dll(_runner(), f"shim_{name}") for name in ("backwards", "misaligned")
        )
        backwards.value, misaligned.value = self.backwards, 0
        status = function(*(ctypes.c_void_p(a.ctypes.data) for a in (parameters, *three)))
        backwards.value = False
        assert status == 0, "threads of a block did not meet at a barrier"
        assert not misaligned.value, f"{misaligned.value} accesses at misaligned addresses"
        self.check_workspace()

    def check_workspace(self) -> None:
        """Nothing was written behind the workspace."""
        assert (self._behind == 0xA5).all(), "a kernel wrote behind its workspace"


def aligned(nbytes: int, boundary: int = 64) -> Any:
    """Uninitialised bytes at a multiple of ``boundary``."""
    raw = np.empty(nbytes + boundary, np.uint8)
    start = -raw.ctypes.data % boundary
    return raw[start : start + nbytes]


def device_copy(array: Any) -> tuple[RawArray, Any]:
    """An array in aligned memory of its own, C-contiguous: (device array, NumPy view of it)."""
    value = np.asarray(array)
    memory = aligned(max(value.nbytes, 1))
    held = memory[: value.nbytes].view(value.dtype).reshape(value.shape)
    held[...] = value
    return on_device(held), held


def on_device(array: Any) -> RawArray:
    """A NumPy array's memory as if it were a device's."""
    name = array.dtype.name
    return RawArray(array.ctypes.data, array.shape, name, array.strides, array)


def must_be_dense(kernel: Any, index: int, array: Any) -> bool:
    """Whether a plan would make a contiguous copy of this operand for the kernel."""
    return not kernel.accepts(index, on_device(array))


def run(kernel: Any, call: Call, arrays: list[Any], out: list[Any] | None = None) -> Any:
    """Run ``kernel`` on NumPy arrays: (results, environment).

    ``arrays`` are used where they lie, so strided ones test strides, but for those of which a plan
    would make a copy for the kernel; host inputs are numbers. ``out`` gives arrays to write into.
    """
    env = HostEnv(kernel.workspace_bytes(call))
    read = set(call.op.host_inputs)
    inputs = [np.int64(a) if i in read else on_device(a) for i, a in enumerate(arrays)]
    inputs = [
        device_copy(a)[0] if i not in read and must_be_dense(kernel, i, a) else x
        for i, (a, x) in enumerate(zip(arrays, inputs))
    ]
    if out is None:
        out = []
        for t in call.outputs:
            made = np.zeros(t.shape, numpy_dtype(t.dtype))
            made.view(np.uint8).fill(0xCD) if made.size and made.ndim else None
            out.append(device_copy(made)[1])
    outputs = [on_device(a) for a in out]
    launch = kernel.bind(call)
    launch(env, inputs, outputs)
    return out, env
