"""``nvmath.bindings.cufft`` on this machine's memory: plans as cuFFT reads them, by NumPy.

It keeps what cuFFT's documentation says and symdnn relies on: transforms are unscaled, a plan needs
its work area, and an inverse to real numbers destroys its operand and reads imaginary parts that
should be 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.gpu.fake_device import at


class Type(enum.IntEnum):
    """``cufftType``."""

    R2C, C2R, C2C, D2Z, Z2D, Z2Z = 0x2A, 0x2C, 0x29, 0x6A, 0x6C, 0x69


@dataclass
class FakeCufft:
    """Stands for the module; ``made`` are the arguments of plans, ``live`` the handles."""

    made: list[tuple[Any, ...]] = field(default_factory=list)
    live: dict[int, dict[str, Any]] = field(default_factory=dict)
    work_bytes: int = 64
    Type = Type

    def get_version(self) -> int:
        return 12000

    def create(self) -> int:
        handle = len(self.made) + 100
        self.live[handle] = {"area": None, "stream": None}
        return handle

    def destroy(self, handle: int) -> None:
        del self.live[handle]

    def set_auto_allocation(self, handle: int, on: int) -> None:
        self.live[handle]["auto"] = on

    def set_stream(self, handle: int, stream: int) -> None:
        self.live[handle]["stream"] = stream

    def set_work_area(self, handle: int, area: int) -> None:
        self.live[handle]["area"] = area

    def make_plan_many64(self, handle: int, rank: int, n: Any, *rest: Any) -> int:
        inembed, istride, idist, onembed, ostride, odist, kind, batch = rest
        assert rank == len(n) == len(inembed) == len(onembed) <= 3
        assert (istride, ostride) == (1, 1)
        assert (idist, odist) == (np.prod(inembed), np.prod(onembed))
        self.made.append((Type(kind).name, tuple(n), batch))
        self.live[handle] |= {"n": n, "read": (batch, *inembed), "written": (batch, *onembed)}
        return self.work_bytes

    def _run(self, handle: int, source: int, target: int, dtypes: str, function: Any) -> None:
        plan = self.live[handle]
        assert plan["auto"] == 0
        assert plan["area"], "cuFFT would use an area that nobody gave it"
        at(plan["area"], self.work_bytes)[...] = 0xEE
        read, written = (np.dtype(d) for d in dtypes.split())
        x = _array(source, plan["read"], read)
        y = function(x, tuple(range(1, x.ndim)), plan["n"])
        _array(target, plan["written"], written)[...] = y
        if read.kind == "c" and written.kind == "f":
            x[...] = np.nan

    def exec_c2c(self, handle: int, source: int, target: int, way: int) -> None:
        self._run(handle, source, target, "c8 c8", _both_ways(way))

    def exec_z2z(self, handle: int, source: int, target: int, way: int) -> None:
        self._run(handle, source, target, "c16 c16", _both_ways(way))

    def exec_r2c(self, handle: int, source: int, target: int) -> None:
        self._run(handle, source, target, "f4 c8", lambda x, axes, n: np.fft.rfftn(x, axes=axes))

    def exec_d2z(self, handle: int, source: int, target: int) -> None:
        self._run(handle, source, target, "f8 c16", lambda x, axes, n: np.fft.rfftn(x, axes=axes))

    def exec_c2r(self, handle: int, source: int, target: int) -> None:
        self._run(handle, source, target, "c8 f4", _to_real)

    def exec_z2d(self, handle: int, source: int, target: int) -> None:
        self._run(handle, source, target, "c16 f8", _to_real)


def _both_ways(way: int) -> Any:
    function = {-1: np.fft.fftn, 1: np.fft.ifftn}[way]
    return lambda x, axes, n: function(x, axes=axes, norm="forward" if way > 0 else "backward")


def _to_real(z: Any, axes: Any, n: Any) -> Any:
    assert len(axes) == 1, "symdnn gives cuFFT single axes here"
    alone = z[:, [0, -1]] if n[0] % 2 == 0 else z[:, :1]
    assert not alone.imag.any(), "cuFFT does not promise to leave them out"
    return np.fft.irfft(z, n[0], norm="forward")


def _array(ptr: int, shape: Any, dtype: Any) -> Any:
    return at(ptr, int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)
