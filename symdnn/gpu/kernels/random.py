"""Random draws and dropout: the numbers of ``symdnn.ops.random.rng_philox`` on the device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
    scratch,
)
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.sort import sort_bytes, sorted_lines
from symdnn.graph.kernel import Call, Row
from symdnn.graph.values.strides import merged
from symdnn.ops.nn.dropout import Dropout, DropoutGrad, scaled_program
from symdnn.ops.random.mrg import MrgUniform
from symdnn.ops.random.random import (
    RandomBernoulli,
    RandomCategorical,
    RandomIntegers,
    RandomMultinomial,
    RandomNormal,
    RandomPermutation,
    RandomPoisson,
    RandomSubset,
    RandomUniform,
)
from symdnn.ops.random.rejection import RandomLogGamma, RandomVonMises

_THREADS = 256
_UNIFORM, _NORMAL, _TRUNCATED, _BERNOULLI, _INTEGERS, _WORDS = range(6)
_CATEGORICAL, _MULTINOMIAL, _RACE, _MASK, _WIDE_UNIFORM = range(6, 11)
_LOG_GAMMA, _VON_MISES, _POISSON = range(11, 14)
#: The index of the state, which must be contiguous: it is read as two words.
_STATE_INPUT = frozenset({0})
_MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def _draw(
    kind: int,
    state: View,
    following: View,
    y: View,
    parameters: Views = (),
    *,
    count: int,
    drawn: int,
    bits: int = 23,
    classes: int = 1,
    class_step: int = 0,
    draws: int = 0,
) -> list[KernelLaunch]:
    """Draw ``count`` values into ``y``, and advance the state by ``drawn`` elements.

    ``parameters`` are broadcast to the shape of the draw.
    """
    shape = parameters[0].shape if parameters else (count,)
    shown = [*parameters, *[_unused(shape)] * (2 - len(parameters))]
    sizes, (a_step, b_step) = merged(shape, [v.steps for v in shown])
    a_dtype = parameters[0].dtype if parameters else "float32"
    more = ("special.cuh", "rejection.cuh") if kind >= _LOG_GAMMA else ()
    source = specialised(
        "scalar.cuh", "lines.cuh", "philox.cuh", *more, "random.cu", KIND=kind, BITS=bits,
        T=CTYPES[y.dtype], P=CTYPES[a_dtype], D=len(sizes),
    )  # fmt: skip
    pointers = [v.pointer if i < len(parameters) else 0 for i, v in enumerate(shown)]
    values = (
        state.pointer, following.pointer, y.pointer, *pointers, count, drawn, classes, class_step,
        draws, Pointer(ERROR_WORD), Pointer(NODE), *sizes, *a_step, *b_step,
    )  # fmt: skip
    return [
        KernelLaunch(source, "draw", (blocks_for(max(count, 1), _THREADS),), (_THREADS,), values)
    ]


def _unused(shape: Sequence[int]) -> View:
    return View(0, "float32", tuple(shape), (0,) * len(shape))


#: Draws in float64 of one parameter for each element.
_OF_ONE_PARAMETER = {
    RandomLogGamma: _LOG_GAMMA, RandomVonMises: _VON_MISES, RandomPoisson: _POISSON,
}  # fmt: skip


class DrawKernel(CudaKernel[RandomUniform | RandomNormal | RandomBernoulli | RandomIntegers]):
    """One thread per element, pair or block of four words; see random.cu."""

    name = "cuda.philox"
    dtypes = frozenset(CTYPES)
    contiguous_inputs = _STATE_INPUT

    def launches(
        self,
        call: Call[RandomUniform | RandomNormal | RandomBernoulli | RandomIntegers],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op = call.op
        state, parameters, _ = op.split(inputs)
        y, following = outputs
        given = [p.broadcast_to(y.shape) for p in parameters]
        return _draw(
            _kind(op), state, following, y, given, count=y.size, drawn=y.size,
            bits=52 if isinstance(op, RandomNormal) and op.dtype == "float64"
            else _MANTISSA_BITS.get(op.dtype, 23),
        )  # fmt: skip


def _kind(op: object) -> int:
    for known, kind in _OF_ONE_PARAMETER.items():
        if isinstance(op, known):
            return kind
    if isinstance(op, RandomNormal):
        return _TRUNCATED if op.truncated else _NORMAL
    if isinstance(op, RandomUniform):
        return _WIDE_UNIFORM if op.dtype == "float64" else _UNIFORM
    return _BERNOULLI if isinstance(op, RandomBernoulli) else _INTEGERS


class IntegersKernel(DrawKernel):
    """Integers between int64 bounds."""

    def refuses(
        self, call: Call[RandomUniform | RandomNormal | RandomBernoulli | RandomIntegers]
    ) -> str | None:
        """Bounds that are not int64; the builder casts them."""
        if any(t.dtype != "int64" for t in call.inputs[1:3]):
            return "bounds that are not int64"
        return super().refuses(call)


class ClassKernel(CudaKernel[RandomCategorical | RandomMultinomial]):
    """Classes by weight: one thread per row loops over the classes."""

    name = "cuda.philox"
    dtypes = frozenset(CTYPES)
    contiguous_inputs = _STATE_INPUT

    def launches(
        self,
        call: Call[RandomCategorical | RandomMultinomial],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op = call.op
        state, parameters, dims = op.split(inputs)
        y, following = outputs
        shape, p = tuple(dims), parameters[-1]
        classes, rows = p.shape[-1], prod(shape)
        several = isinstance(op, RandomMultinomial)
        draws = parameters[0] if several else 1
        first = p[(*[slice(None)] * len(shape), 0)] if classes else p.broadcast_to((*shape, 1))
        return _draw(
            _MULTINOMIAL if several else _CATEGORICAL, state, following, y,
            [first.broadcast_to(shape)], count=rows, drawn=rows * draws, classes=classes,
            class_step=p.steps[-1], draws=draws,
        )  # fmt: skip


class OrderKernel(CudaKernel):
    """Permutations and subsets by a sort of random keys."""

    name = "cuda.philox.sort"
    dtypes = frozenset(CTYPES)
    contiguous_inputs = _STATE_INPUT

    def workspace_bytes(self, call: Call) -> int:
        """The keys, and the workspace of their sort."""
        keys = prod(self._keys(call))
        return 8 * (keys + 2) + sort_bytes(keys, "uint64")

    def _keys(self, call: Call) -> tuple[int, ...]:
        """The shape of the keys. For a subset the last dimension is the number of classes."""
        shape = call.outputs[0].shape
        if isinstance(call.op, RandomSubset):
            return (*shape[:-1], call.inputs[1].shape[-1])
        return tuple(shape)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """The keys, then their sort."""
        y, following = outputs
        shape = self._keys(call)
        size = prod(shape)
        after = 8 * (size + size % 2)
        if isinstance(call.op, RandomSubset):
            keys = scratch(0, "float64", shape)
            drawn = _draw(
                _RACE, inputs[0], following, keys, [inputs[1].broadcast_to(shape)], count=size,
                drawn=size, classes=max(shape[-1], 1), draws=y.shape[-1],
            )  # fmt: skip
        else:
            keys = scratch(0, "uint64", shape)
            drawn = _draw(_WORDS, inputs[0], following, keys, count=size, drawn=size)
        return drawn + sorted_lines(keys, len(shape) - 1, None, y, at=after)


class MrgKernel(CudaKernel[MrgUniform]):
    """One thread per stream of MRG31k3p; see mrg.cu."""

    name = "cuda.mrg"
    dtypes = frozenset(CTYPES)
    contiguous_inputs = _STATE_INPUT

    def launches(
        self, call: Call[MrgUniform], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        state, (y, following) = inputs[0], outputs
        streams = state.shape[0]
        source = specialised(
            "scalar.cuh", "mrg.cu", T=CTYPES[y.dtype], FLOAT16=int(y.dtype == "float16"),
            FLOAT32=int(y.dtype == "float32"),
        )  # fmt: skip
        values = (state.pointer, following.pointer, y.pointer, y.size, streams)
        grid = (blocks_for(max(streams, 1), _THREADS),)
        return [KernelLaunch(source, "draw", grid, (_THREADS,), values)]


# -- dropout --------------------------------------------------------------------------------------


class DropoutKernel(CudaKernel[Dropout]):
    """The mask, then its application to x."""

    name = "cuda.dropout"
    dtypes = frozenset(CTYPES)
    contiguous_inputs = _STATE_INPUT

    def launches(
        self, call: Call[Dropout], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """Two kernels."""
        op = call.op
        (state, x, rate), (y, mask, following) = inputs, outputs
        size = mask.size
        drawn = _draw(
            _MASK, state, following, mask, [rate.broadcast_to(mask.shape)], count=size, drawn=size
        )
        return drawn + elementwise(scaled_program(x.dtype, op.scale), [x, mask, rate], [y])


class DropoutGradKernel(CudaKernel[DropoutGrad]):
    """The gradient by the mask."""

    name = "cuda.dropout"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call[DropoutGrad], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op = call.op
        return elementwise(scaled_program(inputs[0].dtype, op.scale), inputs, outputs)


KERNELS: tuple[Row, ...] = (
    ((RandomUniform, RandomNormal, RandomBernoulli, *_OF_ONE_PARAMETER), (DrawKernel(),)),
    ((RandomIntegers,), (IntegersKernel(),)),
    ((RandomCategorical, RandomMultinomial), (ClassKernel(),)),
    ((RandomPermutation, RandomSubset), (OrderKernel(),)),
    ((MrgUniform,), (MrgKernel(),)),
    ((Dropout,), (DropoutKernel(),)),
    ((DropoutGrad,), (DropoutGradKernel(),)),
)
