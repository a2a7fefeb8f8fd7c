"""The fake libcudnn with memory: its convolutions compute by NumPy, and can be made wrong.

What ``measure.cu`` computes (``fill_random``, ``take``, ``spoil``, ``difference``) is
NumPy's, too. So launches, checks and replacements run as on a card, in this machine's memory.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu.conv import checked
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.tuning import blocked
from tests.gpu import emulator
from tests.gpu.fake_cudnn import FakeEnv, library_kernels

__all__ = ["Memory", "computing", "run_conv"]

_TYPES = {"float": "float32", "double": "float64", "f16": "float16", "bf16": "bfloat16"}


def seen(ptr: int, shape: Any, dtype: str, strides: Any = None) -> Any:
    """Memory of this machine as an array."""
    kind = numpy_dtype(dtype)
    ends = [s * (n - 1) for n, s in zip(shape, strides or (), strict=bool(strides))]
    count = (sum(ends) + kind.itemsize) if strides else int(np.prod(shape)) * kind.itemsize
    raw = (ctypes.c_char * count).from_address(ptr)
    return np.ndarray(tuple(shape), kind, raw, 0, tuple(strides) if strides else None)


@dataclass
class Memory(FakeEnv):
    """An environment whose device memory is this machine's."""

    kept: list[Any] = field(default_factory=list)
    capturing: bool = False
    allocated: list[int] = field(default_factory=list)

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        value = np.zeros(shape, numpy_dtype(dtype))
        self.kept.append(value)
        self.allocated.append(value.nbytes)
        return RawArray(value.ctypes.data, shape, dtype)

    def put(self, value: Any) -> RawArray:
        """An array on the device."""
        made = self.empty(value.shape, value.dtype.name)
        seen(made.ptr, made.shape, made.dtype)[...] = value
        return made

    def zero(self, ptr: int, nbytes: int) -> None:
        seen(ptr, (nbytes,), "uint8")[...] = 0

    def download(self, array: RawArray) -> Any:
        return seen(array.ptr, array.shape, array.dtype).copy()

    def module(self, source: str, name: str, options: Any = ()) -> Any:
        if "WIDE" not in source:
            return emulator.library(source, name)
        words = dict(re.findall(r"^#define (T|WIDE|TAKE) (\w+)$", source, re.M))
        return name, _TYPES[words["T"]], _TYPES[words["WIDE"]], int(words.get("TAKE", 0))

    def launch(self, function: Any, grid: Any, block: Any, shared: int, args: Any) -> None:
        if not isinstance(function, tuple):
            emulator.HostEnv().launch(function, grid, block, shared, args)
            return
        name, dtype, wide, take = function
        self.did.append((name,))
        if name == "spoil":
            seen(args[0], (int(args[1]),), dtype)[...] = np.nan
            return
        array, other, count, channels, inner, last, *more = (int(a) for a in args)
        shape = count // (channels * inner), channels, inner
        if last:
            narrow = seen(array, (shape[0], inner, channels), dtype).transpose(0, 2, 1)
        else:
            narrow = seen(array, shape, dtype)
        values = seen(other, shape, wide)
        if name == "fill_random":
            values[...] = np.random.default_rng(more[0]).uniform(-1, 1, shape).astype(dtype)
            narrow[...] = values
            return
        if name == "take":
            values[...] = np.abs(narrow) if take == 2 else narrow
            return
        error = narrow.astype(np.float64) - values
        sums = seen(more[0], (3,), "float64")
        worst = np.abs(error).max()
        sums += [(error**2).sum(), (values.astype(np.float64) ** 2).sum(), 0]
        sums[2] = np.nan if np.isnan(worst) else max(sums[2], worst)


class Computing:
    """cuDNN's three convolutions by NumPy. ``wrong`` has numbers of algorithms, by direction."""

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.wrong: dict[str, set[int]] = {"fwd": set(), "bwd_data": set(), "bwd_filter": set()}
        self.ran: list[tuple[str, int]] = []
        for stem, direction in (
            ("Forward", "fwd"), ("BackwardData", "bwd_data"), ("BackwardFilter", "bwd_filter"),
        ):  # fmt: skip
            fake.answers[f"cudnnConvolution{stem}"] = self._runner(direction)
            fake.answers[f"cudnnGetConvolution{stem}Algorithm_v7"] = []

    def _runner(self, direction: str) -> Any:
        def run(
            handle: Any, alpha: Any, a: Any, a_at: int, b: Any, b_at: int, how: Any, number: int,
            workspace: int, nbytes: int, beta: Any, c: Any, c_at: int,
        ) -> bool:  # fmt: skip
            self.ran.append((direction, int(number)))
            first, second, out = (self._array(d, at) for d, at in ((a, a_at), (b, b_at), (c, c_at)))
            value = self._value(direction, self.fake.what[int(how)], first, second, out.shape)
            if int(number) in self.wrong[direction]:
                value = value.copy()
                value[..., -1] = 0  # a column that was not computed
            scaled = alpha.contents.value * value
            factor = beta.contents.value
            out[...] = scaled + factor * out.astype(np.float64) if factor else scaled
            return True

        return run

    def _array(self, descriptor: Any, at: int) -> Any:
        d = self.fake.what[int(descriptor)]
        strides = getattr(d, "strides", None)
        if strides is None and d.layout == "NHWC":
            n, ch, *sizes = d.shape
            return np.moveaxis(seen(at, (n, *sizes, ch), d.dtype), -1, 1)
        item = numpy_dtype(d.dtype).itemsize
        return seen(at, d.shape, d.dtype, None if strides is None else [s * item for s in strides])

    @staticmethod
    def _value(direction: str, how: Any, a: Any, b: Any, shape: Any) -> Any:
        words = {
            "padding": tuple((p, p) for p in how.padding), "stride": how.stride,
            "dilation": how.dilation, "groups": how.groups, "flip": how.flip,
        }  # fmt: skip
        a, b = a.astype(np.float64), b.astype(np.float64)
        if direction == "fwd":
            return Conv(**words).reference(a, b)
        op = ConvGradInput if direction == "bwd_data" else ConvGradWeight
        sizes = tuple(shape[2:])
        return op(**words, static=sizes).reference(a, b, *map(np.int64, sizes))


@pytest.fixture
def computing(fake, monkeypatch, tmp_path):
    """cuDNN that computes, checks on, and an empty block list."""
    made = Computing(fake)
    monkeypatch.setattr(checked, "is_capturing", lambda env: env.capturing)
    checked.forget()
    blocked.forget()
    with config.change_flags({"dnn.check": "once", "dnn.conv.tuning_cache": str(tmp_path / "t")}):
        yield made
    checked.forget()
    blocked.forget()


def run_conv(fake: Any, call: Call, inputs: Any, env: Any = None, launch: Any = None) -> Any:
    """Run a call on NumPy arrays: (result, environment, launch, settled kernel)."""
    env = env or Memory(fake)
    kernel = library_kernels(type(call.op))[0].settled(call)
    launch = launch or kernel.bind(call)
    given = [env.put(a) if np.ndim(a) else a for a in inputs]
    (t,) = call.outputs
    out = env.empty(t.shape, t.dtype)
    launch(env, given, [out])
    return env.download(out), env, launch, kernel
