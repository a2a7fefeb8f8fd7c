"""The emulated device with every kernel's result by NumPy: what device tests expect, without one.

Graphs are lowered, placed, planned, captured and replayed as for a GPU, and reports name the
kernels that a GPU would run. The references compute the values. So a device test that passes here
and fails on a card has found a wrong kernel; one that fails here is wrong about the graph. Our own
kernels that detect errors in data run in the emulator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.gpu.codegen.launches import NODE, CudaKernel, Pointer, contiguous_view
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.plan import CudaPlan
from symdnn.graph.kernel import Call
from symdnn.graph.target import Target
from symdnn.graph.type import numpy_dtype
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import StreamStart, StreamWait
from tests.gpu.fake_device import FakeArena, FakeRuntime, at

__all__ = ["TARGET", "ReferenceRuntime", "by_reference"]

#: The facts about the device: a Hopper card with a recent cuDNN.
TARGET = Target("cuda", 0, compute_capability=(9, 0), cudnn=(9, 19, 0), memory_bytes=80 << 30)


class Unknown:
    """A kernel's own state (a reserve), known when the work is done."""

    def __init__(self) -> None:
        self.value: Any = None


class ByReference:
    """A chosen kernel whose launches compute by the op's reference."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def bind(self, call: Call) -> Any:
        """Computes ``call`` on the memory of this machine."""
        return self._launcher(call, self.kernel.bind, guarded=False)

    def bind_guarded(self, call: Call) -> Any:
        """The same, but it writes nothing after the error word was set."""
        return self._launcher(call, self.kernel.bind_guarded, guarded=True)

    def bind_beside(self, call: Call) -> Any:
        """The same for results between others."""
        return self._launcher(call, self.kernel.bind_beside, guarded=False)

    def _launcher(self, call: Call, bind: Any, guarded: bool) -> Any:
        real: list[Any] = []

        def emulated(env: Any, inputs: Any, outputs: Any) -> None:
            if not real:
                real.append(bind(call))
            real[0](env, inputs, outputs)

        def launch(env: Any, inputs: Any, outputs: Any) -> Any:
            if env.load_only:
                return None
            if _finds_fault(self.kernel, call) or _moves_nothing(call):
                return emulated(env, inputs, outputs)
            results = [Unknown() if y is None else y for y in outputs]

            alone = getattr(env, "alone", False) and isinstance(call.op, Collective)

            def work() -> None:
                if alone:
                    _fill(inputs, results)
                elif not guarded or not env.context.word[0]:
                    _compute(call, inputs, results)

            env.context.enqueue(self.kernel.name, work)
            if isinstance(call.op, StreamStart):
                env.side.came(next((y.ptr for y in results if y.size), 0))
            return results if any(y is None for y in outputs) else None

        return launch


def _finds_fault(kernel: Any, call: Call) -> bool:
    """Whether the kernel is ours and one of its launches may write the error word."""
    if not isinstance(kernel, CudaKernel):
        return False
    read, count = call.op.host_inputs, len(call.inputs)
    inputs = [1 if i in read else contiguous_view(i, t) for i, t in enumerate(call.inputs)]
    outputs = [contiguous_view(count + i, t) for i, t in enumerate(call.outputs)]
    launches = kernel.launches(call, inputs, outputs)
    return any(isinstance(p, Pointer) and p.slot == NODE for k in launches for p in k.parameters)


def _moves_nothing(call: Call) -> bool:
    """Whether NCCL's kernels do without NCCL: in a group of one rank, and to wait."""
    if isinstance(call.op, StreamWait):
        return True
    return isinstance(call.op, StreamStart) and call.op.group.size == 1


def _compute(call: Call, inputs: Any, results: Any) -> None:
    given = [_value(x) for x in inputs]
    read = getattr(call.op, "host_values", call.op.host_inputs)
    for i, x in enumerate(inputs):
        there = isinstance(x, RawArray | Unknown) or i in read
        assert there or (np.ndim(x) == 0 and np.asarray(x).dtype.kind in "biu"), (call.op, i, x)
    with np.errstate(all="ignore"):
        found = call.op.compute(*given)
    for result, value in zip(results, found, strict=True):
        if isinstance(result, Unknown):
            result.value = value
        elif isinstance(result, RawArray):
            _seen(result)[...] = value


def _fill(inputs: Any, results: Any) -> None:
    """A rank's own values, or zeros, for what other ranks do not give now."""
    for result, x in zip(results, [*inputs, *[None] * len(results)]):
        _seen(result)[...] = _value(x) if x is not None and x.shape == result.shape else 0


def _value(x: Any) -> Any:
    if isinstance(x, Unknown):
        return x.value
    return _seen(x).copy() if isinstance(x, RawArray) else x


def _seen(x: RawArray) -> Any:
    """A device array as NumPy sees it; strides may be negative."""
    dtype = numpy_dtype(x.dtype)
    if 0 in x.shape:
        return np.empty(x.shape, dtype)
    ends = [(n - 1) * s for n, s in zip(x.shape, x.strides)]
    low, high = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)
    memory = at(x.ptr + low, high - low + dtype.itemsize)
    return np.ndarray(x.shape, dtype, memory.data, -low, x.strides)


class ReferenceRuntime(FakeRuntime):
    """The emulated device whose plans compute by references."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = FakeArena(1 << 31)  # type: ignore[assignment]

    def bind(self, specialised: Any, memory_plan: Any) -> CudaPlan:
        """A plan with these kernels' names and the references' values."""
        choices = {
            n: replace(c, kernel=ByReference(c.kernel)) for n, c in specialised.choices.items()
        }
        return super().bind(replace(specialised, choices=choices), memory_plan)

    def memory_use(self) -> Any:
        """Nothing is taken of a card."""
        return None


def by_reference() -> ReferenceRuntime:
    """Make it the process's device 0, and ``device=cuda`` mean it."""
    import symdnn.gpu.execution.runtime as runtimes
    from symdnn.gpu import detect

    rt = ReferenceRuntime()
    runtimes._runtimes[0] = rt
    detect.cuda_target = lambda index=0: TARGET
    return rt
