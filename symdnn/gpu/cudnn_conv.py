"""Convolution and its two gradients by cuDNN's legacy API, in one, two or three dimensions.

A batch is cut into calls of at most 65535 images and 2**31 - 1 elements; the gradient of the
kernels then adds up. One-dimensional convolutions are two-dimensional ones of height 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.algorithm import (
    DIRECTIONS,
    SEARCH,
    ConvAlgorithm,
    ConvSignature,
    UnsupportedAlgorithm,
    choose,
    wanted_algorithm,
)
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.cudnn_device import device_index
from symdnn.gpu.cudnn_fallback import enter
from symdnn.gpu.cudnn_kernel import (
    WITH_BFLOAT16,
    CudnnKernel,
    aligned,
    copy,
    factor,
    is_empty,
    most_rows,
    pieces,
    rows,
    tensor,
    zero,
)
from symdnn.gpu.k_copy import strided_copy
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype
from symdnn.ops.conv import resolved_padding
from symdnn.ops.gpudnn import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW, compute_precision

__all__ = ["ConvKernel", "register", "signature"]

#: (data, accumulation) that cuDNN convolves in.
_CONFIGURATIONS = {
    ("float16", "float16"), ("float16", "float32"), ("bfloat16", "float32"),
    ("float32", "float32"), ("float64", "float64"),
}  # fmt: skip


def shapes(call: Call) -> dict[str, tuple[int, ...]]:
    """Shapes of ``x``, ``w`` and ``y``."""
    roles = DIRECTIONS[call.op.direction].roles  # type: ignore[attr-defined]
    types: Any = (*call.inputs[:2], call.outputs[0])
    return {role: tuple(t.shape) for role, t in zip(roles, types)}


def signature(call: Call) -> ConvSignature:
    """The call for the choice of an algorithm, its batch not yet cut."""
    op: Any = call.op
    found = shapes(call)
    pads = [resolved_padding(p, k, d) for p, k, d in zip(op.padding, found["w"][2:], op.dilation)]
    before = tuple(int(b) for b, _ in pads)
    lead = (1,) * (op.ndim == 1)  # the height of a one-dimensional convolution
    x, w, y = (_raised(found[r]) for r in ("x", "w", "y"))
    dtype: str = call.inputs[0].dtype  # type: ignore[attr-defined]
    hint = getattr(call.hints, f"algo_{op.direction}")
    limit = call.hints.workspace_limit
    return ConvSignature(
        direction=op.direction, dtype=dtype, x=x, w=w, y=y,
        padding=(0,) * len(lead) + before, stride=lead + tuple(op.stride),
        dilation=lead + tuple(op.dilation), groups=op.groups, flip=op.flip,
        compute=accumulation(call), allow_tf32=bool(config.dnn.conv.allow_tf32),
        wanted=wanted_algorithm(op.direction, op.algo, hint),
        workspace_limit=int(config.dnn.conv.workspace_limit) if limit is None else limit,
        deterministic=config.deterministic == "more",
        on_unsupported=str(config.dnn.conv.on_unsupported),
    )  # fmt: skip


def _raised(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


def accumulation(call: Call) -> str:
    """The dtype in which the call accumulates: the op's, else the hint's, else the flag's."""
    op: Any = call.op
    wanted = op.precision or call.hints.precision or str(config.dnn.conv.precision)
    return compute_precision(wanted, call.inputs[0].dtype)  # type: ignore[attr-defined]


def cut(s: ConvSignature, count: int) -> ConvSignature:
    """The signature for ``count`` images."""
    return replace(s, x=(count, *s.x[1:]), y=(count, *s.y[1:]))


@dataclass(frozen=True)
class _Piece:
    """A part of the batch, as it is enqueued."""

    start: int
    count: int
    signature: ConvSignature
    algorithm: ConvAlgorithm


def plan_of(call: Call) -> list[_Piece]:
    """The calls of cuDNN for a call of the op."""
    s, device = signature(call), device_index()
    made = []
    for start, count in pieces(s.x[0], most_rows(s.x, s.y)):
        part = cut(s, count)
        made.append(_Piece(start, count, part, choose(part, device)))
    return made


@dataclass(frozen=True)
class ConvKernel(CudnnKernel):
    """All three directions. Computes ``alpha * convolution + beta * out``."""

    name: str = "cudnn.conv"
    dtypes = WITH_BFLOAT16

    def refuses_types(self, call: Call) -> str | None:
        """Padding that differs before and after, other accumulation, more dimensions."""
        op: Any = call.op
        if any(not isinstance(p, str) and p[0] != p[1] for p in op.padding):
            return f"cuDNN pads alike before and after, not {op.padding}"
        compute, dtype = accumulation(call), call.inputs[0].dtype  # type: ignore[attr-defined]
        if (dtype, compute) not in _CONFIGURATIONS:
            return f"cuDNN does not convolve {dtype} in {compute}"
        if op.ndim > 3:
            return "cuDNN convolves in at most three dimensions"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call) -> str | None:
        """Images too large, and what the device says it can't do."""
        found = shapes(call)
        if any(0 in s for s in found.values()):
            return None
        if most_rows(found["x"], found["y"]) == 0 or prod(found["w"]) >= 2**31:
            return "an image or the kernels have 2**31 elements or more"
        return self._without_any(call)

    def _without_any(self, call: Call) -> str | None:
        """That cuDNN has no algorithm at all; what a named one lacks is raised as an error."""
        s = signature(call)
        direction = DIRECTIONS[s.direction]
        unknown = isinstance(s.wanted, str) and s.wanted not in (*direction.algorithms, *SEARCH)
        may_give_way = s.on_unsupported != "raise" or s.wanted in (direction.default, *SEARCH)
        try:
            plan_of(call)
        except UnsupportedAlgorithm as error:
            if unknown or not may_give_way:
                raise
            return str(error)
        return None

    def workspace_bytes(self, call: Call) -> int:
        """The largest of the pieces', and room for mirrored kernels."""
        if any(0 in s for s in shapes(call).values()):
            return 0
        plan = plan_of(call)
        nbytes = max(p.algorithm.workspace_bytes for p in plan)
        if any(p.algorithm.flip_by_copy for p in plan):
            w = plan[0].signature.w
            nbytes = aligned(nbytes) + prod(w) * numpy_dtype(plan[0].signature.dtype).itemsize
        return nbytes

    def details(self, call: Call) -> str:
        """What cuDNN computes, and by which algorithm."""
        if any(0 in s for s in shapes(call).values()):
            return "nothing: it is empty"
        plan = plan_of(call)
        parts = f", in {len(plan)} parts" if len(plan) > 1 else ""
        return f"{plan[0].signature}; algorithm {plan[0].algorithm}{parts}"

    def launcher(self, call: Call) -> Any:
        """Descriptors are made here; a launch only passes pointers."""
        if any(0 in s for s in shapes(call).values()):
            return _Empty(call)
        return _Bound(call, plan_of(call))


class _Empty:
    """A call with nothing to convolve: the result is ``beta * out``."""

    def __init__(self, call: Call) -> None:
        self.op: Any = call.op

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """0, or what is added to; a factor other than 1 is cuDNN's to apply."""
        out = outputs[0]
        if is_empty(out):
            return
        if self.op.output_index is None:
            zero(env, out)
            return
        copy(env, inputs[self.op.output_index], out)
        shape = (*out.shape, 1) if out.ndim == 3 else out.shape
        scale = factor(out.dtype, self.op.beta)
        libcudnn.cudnnScaleTensor(env.cudnn, tensor(out.dtype, shape).handle, out.ptr, scale)


class _Bound:
    """A call with its descriptors."""

    def __init__(self, call: Call, plan: list[_Piece]) -> None:
        op: Any = call.op
        self.op = op
        self.direction = DIRECTIONS[op.direction]
        self.run = self.direction.run
        self.dtype: str = call.inputs[0].dtype  # type: ignore[attr-defined]
        self.plan = [(p, self._form(p).descriptors()) for p in plan]
        self.by_copy = any(p.algorithm.flip_by_copy for p in plan)
        self.scratch_at = aligned(max(p.algorithm.workspace_bytes for p in plan))

    @staticmethod
    def _form(p: _Piece) -> ConvSignature:
        mirrored = p.algorithm.flip_by_copy
        return replace(p.signature, flip=False) if mirrored else p.signature

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        out = outputs[0]
        if self.op.output_index is not None:
            copy(env, inputs[self.op.output_index], out)
        first, second, result = self.direction.roles
        arrays = {first: inputs[0], second: inputs[1], result: out}
        if not self.by_copy:
            self._enqueue(env, arrays)
            return
        w = arrays["w"]
        scratch = DeviceArray(env.workspace + self.scratch_at, w.shape, w.dtype)
        if result != "w" or self.op.beta:
            strided_copy(env, mirrored(w), scratch)
        self._enqueue(env, {**arrays, "w": scratch})
        if result == "w":
            strided_copy(env, mirrored(scratch), w)

    def _enqueue(self, env: Any, arrays: dict[str, DeviceArray]) -> None:
        alpha, beta = factor(self.dtype, self.op.alpha), factor(self.dtype, self.op.beta)
        handle = env.cudnn
        for p, (first, second, convolution, result) in self.plan:
            a, b, c = self._pointers(p, arrays)
            if p.start and self.direction.roles[2] == "w":
                beta = factor(self.dtype, 1.0)
            self.run(
                handle, alpha, first.handle, a, second.handle, b, convolution.handle,
                p.algorithm.number, env.workspace, p.algorithm.workspace_bytes, beta,
                result.handle, c,
            )  # fmt: skip

    def _pointers(self, p: _Piece, arrays: dict[str, DeviceArray]) -> Iterator[int]:
        for role in self.direction.roles:
            x = arrays[role]
            yield x.ptr if role == "w" else rows(x, p.start, p.count).ptr


def mirrored(w: DeviceArray) -> DeviceArray:
    """A view of contiguous kernels with their spatial dimensions reversed."""
    last = sum((n - 1) * s for n, s in zip(w.shape[2:], w.strides[2:]))
    strides = (*w.strides[:2], *(-s for s in w.strides[2:]))
    return replace(w, ptr=w.ptr + last, strides=strides)


def register() -> None:
    """Enter the kernel into the table."""
    for op in (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW):
        enter(op, ConvKernel())
