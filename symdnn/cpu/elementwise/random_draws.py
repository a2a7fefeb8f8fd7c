"""Draws and dropout by compiled loops: the numbers of :mod:`symdnn.ops.random.rng_philox`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise import elementwise
from symdnn.cpu.elementwise.random_draws_ir import draw_ir
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import uncompiled
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.random.random import RandomBernoulli, RandomNormal, RandomUniform

__all__ = ["DrawKernel", "DropoutGradKernel", "DropoutKernel", "KERNELS"]

#: Below so many elements compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 9
#: Elements for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 13
_KINDS: dict[type, str] = {
    RandomUniform: "uniform", RandomNormal: "normal", RandomBernoulli: "bernoulli",
}  # fmt: skip
_Words = ctypes.c_int64
#: Words of a block: the state, the next one, the values, the parameter.
_STATE, _NEXT, _VALUES, _PARAMETER = 3, 4, 5, 6


def _too_little(t: Any) -> str | None:
    """Why no kernel is compiled for an array of a type; those of unknown sizes are taken."""
    return uncompiled((t,), lambda: prod(t.shape), _LEAST_WORK) if t.is_static else None


class DrawKernel(Kernel):
    """Uniform and normal values of float32; 0 and 1 of one probability."""

    name = "llvm.philox"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Needs float32, or one probability."""
        op: Any = call.op
        y: Any = call.outputs[0]
        if isinstance(op, RandomBernoulli):
            p: Any = call.inputs[1]
            if p.dtype not in ("float32", "float64") or y.dtype not in VALUES:
                return f"there is no code for {y.dtype} of a probability of {p.dtype}"
            if p.is_static and prod(p.shape) != 1:
                return "there are several probabilities"
        elif y.dtype != "float32" or getattr(op, "truncated", False):
            return "it makes float32, not truncated"
        return _too_little(y)

    def writes_updates(self, call: Call) -> bool:
        """It can write a shared variable, the state: it never fails."""
        return True

    def bind(self, call: Call) -> Any:
        """Compiled for any sizes."""
        y: Any = call.outputs[0]
        p: Any = call.inputs[1].dtype if isinstance(call.op, RandomBernoulli) else ""
        return _Draw(_KINDS[type(call.op)], y.dtype, p, prod(y.shape))


class _Draw(CpuLaunch):
    """``launch(inputs, outputs)``: (state, and a parameter if there is one) to (values, state)."""

    def __init__(self, kind: str, dtype: str, parameter: str, count: int) -> None:
        self._run = threads.kernel(draw_ir, kind, dtype, parameter)
        self._parameter = bool(parameter)
        words = [threads.threads(count, _WORK_OF_A_THREAD), 1, count, 0, 0, 0, 0]
        self._words = (_Words * len(words))(*words)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Draw every element."""
        y, following = outputs
        state = np.ascontiguousarray(inputs[0])
        made = y if y.flags.c_contiguous else np.empty(y.shape, y.dtype)
        after = following if following.flags.c_contiguous else np.empty(2, np.uint64)
        words = self._words
        words[_STATE], words[_NEXT], words[_VALUES] = id(state), id(after), id(made)
        if self._parameter:
            words[_PARAMETER] = id(inputs[1])
        self._run(words)
        for whole, out in ((made, y), (after, following)):
            if whole is not out:
                np.copyto(out, whole)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order."""
        if not all(a.flags.c_contiguous for a in (inputs[0], *outputs)):
            return None
        rest = [-1] * (len(inputs) - 1)
        if self._parameter:
            rest[0] = _PARAMETER
        return Native.of(self._run, self._words, (_STATE, *rest, _VALUES, _NEXT))


# -- dropout --------------------------------------------------------------------------------------


def scaled_program(dtype: str, scale: bool) -> ScalarProgram:
    """``x / (1 - rate)`` where the mask holds, else 0; inputs are the mask, x and the rate.

    With a rate of 1 nothing is divided.
    """
    b = Builder(("bool", dtype, "float32"))
    mask, given, rate = (b.input(i) for i in range(3))
    work = "float64" if dtype == "float64" else "float32"
    x = b.cast(given, work)
    keep = 1 - b.cast(rate, work)
    kept = x / keep.call("eq", 0).where(1, keep) if scale else x
    return b.program([b.cast(mask.where(kept, 0), dtype)])


class DropoutKernel(Kernel):
    """A mask by :mod:`symdnn.cpu.elementwise.random_draws_ir`, then a pass over the elements."""

    name = "llvm.dropout"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Needs enough to do."""
        x, mask = call.inputs[1], call.outputs[1]
        if x.dtype not in VALUES:
            return "there is no code for the dtype"
        return _too_little(mask)

    def bind(self, call: Call) -> Any:
        """The two launches."""
        op: Any = call.op
        x: Any = call.inputs[1]
        count = prod(call.outputs[1].shape)
        draw = _Draw("mask", "bool", "float32", count)
        scale = elementwise.launcher(scaled_program(x.dtype, op.scale), tuple(x.shape))

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            (state, x, rate), (y, mask, following) = inputs, outputs
            draw([state, rate], [mask, following])
            scale([mask, x, rate], [y])

        return launch


class DropoutGradKernel(Kernel):
    """One pass over the elements."""

    name = "llvm.dropout"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Needs enough to do."""
        dy: Any = call.inputs[0]
        if dy.dtype not in VALUES:
            return "there is no code for the dtype"
        return _too_little(dy)

    def bind(self, call: Call) -> Any:
        """An elementwise launch, with its operands in the other order."""
        dy: Any = call.inputs[0]
        op: Any = call.op
        run = elementwise.launcher(scaled_program(dy.dtype, op.scale), tuple(dy.shape))
        return elementwise.Reordered(run, (1, 0, 2))


KERNELS: tuple[Row, ...] = (
    (tuple(_KINDS), (DrawKernel(),)),
    ((Dropout,), (DropoutKernel(),)),
    ((DropoutGrad,), (DropoutGradKernel(),)),
)
