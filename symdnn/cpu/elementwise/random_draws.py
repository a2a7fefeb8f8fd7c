"""Random numbers and dropout by compiled loops, equal to :mod:`symdnn.ops.random.rng_philox`."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise import elementwise
from symdnn.cpu.elementwise.random_draws_ir import draw_ir
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Arrays
from symdnn.ops.nn.dropout import Dropout, DropoutGrad, scaled_program
from symdnn.ops.random.random import RandomBernoulli, RandomNormal, RandomUniform

#: With fewer elements NumPy is faster than compiling.
_MIN_ELEMENTS_TO_COMPILE = 1 << 9
#: Elements for which waking up another thread pays.
_ELEMENTS_PER_THREAD = 1 << 13
_KINDS: dict[type, str] = {
    RandomUniform: "uniform", RandomNormal: "normal", RandomBernoulli: "bernoulli",
}  # fmt: skip
_Words = ctypes.c_int64
#: Indices of words of a block: the state, the next state, the values, the parameter.
_STATE, _NEXT, _VALUES, _PARAMETER = 3, 4, 5, 6


def _refusal(t: Any) -> str | None:
    """Why no kernel is compiled for a result of this type; unknown sizes are taken."""
    return (
        compile_refusal((t,), lambda: prod(t.shape), _MIN_ELEMENTS_TO_COMPILE)
        if t.is_static
        else None
    )


class DrawKernel(Kernel[RandomUniform | RandomNormal | RandomBernoulli]):
    """Uniform and normal numbers of float32; 0 or 1 with one probability."""

    name = "llvm.philox"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[RandomUniform | RandomNormal | RandomBernoulli]) -> str | None:
        """Needs float32 results, or a single probability."""
        op = call.op
        y = call.outputs[0]
        if isinstance(op, RandomBernoulli):
            p = call.inputs[1]
            if p.dtype not in ("float32", "float64") or y.dtype not in VALUES:
                return f"there is no code for {y.dtype} of a probability of {p.dtype}"
            if p.is_static and prod(p.shape) != 1:
                return "there are several probabilities"
        elif y.dtype != "float32" or getattr(op, "truncated", False):
            return "it makes float32, not truncated"
        return _refusal(y)

    def writes_updates(self, call: Call[RandomUniform | RandomNormal | RandomBernoulli]) -> bool:
        """Whether it can write a shared variable, the state: always, since it cannot fail."""
        return True

    def bind(self, call: Call[RandomUniform | RandomNormal | RandomBernoulli]) -> Any:
        """A launch whose code serves all sizes."""
        y = call.outputs[0]
        p = call.inputs[1].dtype if isinstance(call.op, RandomBernoulli) else ""
        return _DrawLaunch(_KINDS[type(call.op)], y.dtype, p, prod(y.shape))


class _DrawLaunch(CpuLaunch):
    """``launch(inputs, outputs)``: from (state[, parameter]) to (values, next state)."""

    def __init__(self, kind: str, dtype: str, parameter: str, count: int) -> None:
        self._run = threads.kernel(draw_ir, kind, dtype, parameter)
        self._parameter = bool(parameter)
        words = [threads.threads(count, _ELEMENTS_PER_THREAD), 1, count, 0, 0, 0, 0]
        self._words = (_Words * len(words))(*words)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
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

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | None:
        """For contiguous operands."""
        if not all(a.flags.c_contiguous for a in (inputs[0], *outputs)):
            return None
        rest = [-1] * (len(inputs) - 1)
        if self._parameter:
            rest[0] = _PARAMETER
        return FastCall.of(self._run, self._words, (_STATE, *rest, _VALUES, _NEXT))


# -- dropout --------------------------------------------------------------------------------------


class DropoutKernel(Kernel[Dropout]):
    """Draws the mask (:mod:`symdnn.cpu.elementwise.random_draws_ir`), then scales the elements."""

    name = "llvm.dropout"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Dropout]) -> str | None:
        """Needs enough elements."""
        x, mask = call.inputs[1], call.outputs[1]
        if x.dtype not in VALUES:
            return "there is no code for the dtype"
        return _refusal(mask)

    def bind(self, call: Call[Dropout]) -> Any:
        """A launch that draws the mask and then applies it."""
        op = call.op
        x = call.inputs[1]
        count = prod(call.outputs[1].shape)
        draw = _DrawLaunch("mask", "bool", "float32", count)
        scale = elementwise.elementwise_launch(scaled_program(x.dtype, op.scale), tuple(x.shape))

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            (state, x, rate), (y, mask, following) = inputs, outputs
            draw([state, rate], [mask, following])
            scale([x, mask, rate], [y])

        return launch


class DropoutGradKernel(Kernel[DropoutGrad]):
    """The gradient of dropout: one pass over the elements."""

    name = "llvm.dropout"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[DropoutGrad]) -> str | None:
        """Needs enough elements."""
        dy = call.inputs[0]
        if dy.dtype not in VALUES:
            return "there is no code for the dtype"
        return _refusal(dy)

    def bind(self, call: Call[DropoutGrad]) -> Any:
        """An elementwise launch."""
        dy, scale = call.inputs[0], call.op.scale
        return elementwise.elementwise_launch(scaled_program(dy.dtype, scale), tuple(dy.shape))


KERNELS: tuple[Row, ...] = (
    (tuple(_KINDS), (DrawKernel(),)),
    ((Dropout,), (DropoutKernel(),)),
    ((DropoutGrad,), (DropoutGradKernel(),)),
)
