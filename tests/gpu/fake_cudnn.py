"""A libcudnn that records its calls and a device that is none: what kernels ask for, and when."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.binding import libcudnn_table
from symdnn.gpu.binding.cudnn_call import CudnnStatusError
from symdnn.gpu.conv import algorithm
from symdnn.gpu.conv import search as conv_search
from symdnn.gpu.conv.depthwise import DepthwiseKernel
from symdnn.gpu.cudnn import descriptor
from symdnn.gpu.cudnn import reduce as cudnn_reduce
from symdnn.gpu.device import cudnn_device
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.rnn import kernel as cudnn_rnn
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.vendor import gpudnn as G

F32 = "float32"
HANDLE, FIXED_HANDLE = 7, 8
WORKSPACE = 1 << 40


class Address(ctypes.c_void_p):
    """A handle: an address that can be referred to weakly."""

    def __int__(self) -> int:
        return self.value or 0


class Fake:
    """Stands for the functions of libcudnn. ``answers`` are results by name, or functions."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.what: dict[int, Any] = {}
        self.answers: dict[str, Any] = {}
        #: What the graph API answers for a signature: records of plans, and why there are none.
        self.plans: Any = lambda form: ([], "no graph API in this test")
        self._next = 0x1000

    def call(self, name: str, *args: Any) -> Any:
        """One call of C."""
        plain = tuple(self._plain(a) for a in args)
        self.calls.append((name, plain))
        answer = self.answers.get(name)
        if callable(answer):
            return answer(*args)
        if answer is not None:
            return answer
        if name.startswith("cudnnCreate"):
            self._next += 0x10
            return Address(self._next)
        if name == "cudnnGetVersion":
            return 91900
        if name == "cudnnGetRNNTempSpaceSizes":
            return 1000, 2000
        return 64 if "Size" in name and name.startswith("cudnn") else None

    def graph_plans(self, form: Any, handle: Any, most: int) -> Any:
        """Stands for :func:`symdnn.gpu.conv.search.graph_plans`."""
        plans, why = self.plans(form)
        return plans[:most], why

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Address):
            return self.what.get(int(value), int(value))
        if isinstance(value, ctypes._Pointer):
            return value.contents.value
        return value

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a function."""
        return [args for called, args in self.calls if called == name]

    def only(self, name: str) -> tuple[Any, ...]:
        """The arguments of the one call of a function."""
        (found,) = self.named(name)
        return found

    def ran(self, *ignored: str) -> list[str]:
        """Functions called, those that only describe or ask left out."""
        quiet = ("cudnnCreate", "cudnnDestroy", "cudnnSet", "cudnnGet", "cudnnRestore", *ignored)
        return [name for name, _ in self.calls if not name.startswith(quiet)]


@dataclass
class FakeEnv:
    """A :class:`~symdnn.gpu.device.env.LaunchEnv` without a device."""

    fake: Fake
    arrays: dict[int, Any] = field(default_factory=dict)
    did: list[tuple[Any, ...]] = field(default_factory=list)
    stream: int = 1
    workspace: int = WORKSPACE
    error_word: int = 2
    node: int = 0
    cudnn: int = HANDLE
    cudnn_deterministic: int = FIXED_HANDLE
    next: int = 0x7000_0000
    overwritable: frozenset[int] = frozenset()

    def zero(self, ptr: int, nbytes: int) -> None:
        self.did.append(("zero", ptr, nbytes))

    def empty(self, shape: tuple[int, ...], dtype: str) -> RawArray:
        self.next += 0x100000
        return RawArray(self.next, shape, dtype)

    def copy_in(self, array: Any, target: RawArray) -> None:
        self.did.append(("copy_in", np.asarray(array).tolist(), target.ptr))

    def download(self, array: RawArray) -> Any:
        return self.arrays[array.ptr]

    def module(self, source: str, name: str, options: Any = ()) -> str:
        return name

    def launch(self, function: Any, grid: Any, block: Any, shared: int, args: Any) -> None:
        self.did.append(("launch", function, np.frombuffer(args[0].tobytes(), np.int64).tolist()))


def unsupported(name: str) -> CudnnStatusError:
    """What cuDNN raises for what it does not take."""
    return CudnnStatusError.class_of(3000)(name, 3000, "CUDNN_STATUS_NOT_SUPPORTED")


@pytest.fixture
def fake(monkeypatch):
    """libcudnn replaced by a :class:`Fake`, on a device number 0 that exists; it goes first."""
    made = Fake()
    for name in libcudnn_table.__all__:
        if name.startswith("cudnn") and callable(getattr(libcudnn, name)) and name[5].isupper():
            real = getattr(libcudnn, name)
            if isinstance(real, type) or not hasattr(real, "parameters"):
                continue
            monkeypatch.setattr(
                libcudnn, name, lambda *args, _n=name, **named: made.call(_n, *args)
            )
    device = SimpleNamespace(
        index=0,
        name="a card",
        cudnn=HANDLE,
        capability=(9, 0),
        current=contextlib.nullcontext,
    )
    monkeypatch.setattr(cudnn_device, "existing_context", lambda: device)
    for direction in conv_search.DIRECTIONS:  # as if nobody had set them
        monkeypatch.delitem(config._global, f"dnn.conv.algo_{direction}", raising=False)
    monkeypatch.setattr(algorithm, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(conv_search, "graph_plans", made.graph_plans)
    remember(monkeypatch, made)
    forget()
    with config.change_flags(**{"gpu.prefer": "cudnn", "dnn.check": "off"}):
        yield made
    forget()


def remember(monkeypatch, made: Fake) -> None:
    """Let calls show descriptions in place of the handles made for them."""
    real = descriptor.Descriptor.__init__

    def init(self, description):
        real(self, description)
        made.what[int(self.handle)] = description

    monkeypatch.setattr(descriptor.Descriptor, "__init__", init)


def forget() -> None:
    """Drop what was cached of another library."""
    descriptor._cache.clear()
    algorithm.forget()
    for cached in (
        cudnn_rnn.sizes, cudnn_rnn.layout_problem, cudnn_reduce._bytes,
    ):  # fmt: skip
        cached.cache_clear()


def call_of(
    op: Any, *inputs: Any, hints: Any = NO_HINTS, host: dict[int, int] | None = None
) -> Any:
    """The call of ``op`` on types given as (dtype, shape); opaque types stand for themselves."""
    types = [TensorType(*t) if isinstance(t, tuple) else t for t in inputs]
    out = op.output_types(types)
    shapes = op.shapes(
        types, [t.shape if isinstance(t, TensorType) else () for t in types], host or {}
    )
    concrete = tuple(
        t.with_shape(s) if isinstance(t, TensorType) else t for t, s in zip(out, shapes)
    )
    return Call(op, tuple(types), concrete, hints)


def arrays_of(types: Any, at: int = 0x100_0000) -> list[Any]:
    """Device arrays for these types, at addresses a MiB apart; None for opaque ones."""
    return [
        RawArray(at + (i << 20), t.shape, t.dtype) if isinstance(t, TensorType) else None
        for i, t in enumerate(types)
    ]


def run(
    fake: Fake, call: Call, inputs: Any = None, kernel: str | None = None, overwritable: Any = ()
) -> Any:
    """Launch a call on the kernel that takes it: (env, inputs, outputs, what it returned).

    ``overwritable`` are inputs that it may overwrite.
    """
    found = next(
        k for k in kernels_for(type(call.op), "cuda")
        if k.refuses(call) is None and kernel in (None, k.name)
    )  # fmt: skip
    assert found.workspace_bytes(call) >= 0
    env = FakeEnv(fake, overwritable=frozenset(overwritable))
    given = arrays_of(call.inputs) if inputs is None else inputs
    outputs = arrays_of(call.outputs, 0x9000_0000)
    result = found.bind(call)(env, given, outputs)
    return env, given, outputs, result


def library_kernels(op: type) -> list[Any]:
    """The kernels of an op's type without ours for depthwise convolutions, which comes first."""
    return [k for k in kernels_for(op, "cuda") if not isinstance(k, DepthwiseKernel)]


def refusal(call: Call) -> list[str]:
    """Why the kernels of the table do not take a call, each reason once."""
    reasons = [k.refuses(call) for k in library_kernels(type(call.op))]
    return [r for r in dict.fromkeys(reasons) if r is not None]


def conv(
    kind: Any = G.GpuDnnConv, dtype: str = F32, x: Any = (2, 4, 7, 6), w: Any = (6, 4, 3, 3),
    hints: Any = NO_HINTS, **more: Any,
) -> Call:  # fmt: skip
    """A call of a convolution in one of its directions, from the shapes of x and w."""
    ndim = len(x) - 2
    words = {"padding": ((1, 1),) * ndim, "stride": (2,) * ndim, "dilation": (1,) * ndim}
    words.update(more)
    words.setdefault("conv_mode", "cross")
    ends = {k: words.pop(k) for k in ("alpha", "residual") if k in words}
    forward = G.GpuDnnConv(**words)
    y = forward.shapes([], [x, w], {})[0]
    add = [(dtype, {G.GpuDnnConv: y, G.GpuDnnConvGradI: x, G.GpuDnnConvGradW: w}[kind])]
    add = add if ends.get("residual") else []
    if kind is G.GpuDnnConv:
        return call_of(
            kind(**words).ending(dtype, **ends), (dtype, x), (dtype, w), *add, hints=hints
        )
    result = x if kind is G.GpuDnnConvGradI else w
    given = (w, y) if kind is G.GpuDnnConvGradI else (x, y)
    sizes = [("int64", ())] * ndim
    host = dict(zip(range(2, 2 + ndim), result[2:]))
    op = kind(**words, static=result[2:]).ending(dtype, **ends)
    return call_of(op, *((dtype, s) for s in given), *sizes, *add, hints=hints, host=host)


def inputs_of(call: Call) -> list[Any]:
    """Device arrays for the inputs of a call."""
    return arrays_of(call.inputs)
