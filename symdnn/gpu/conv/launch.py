"""Convolution and its two gradients by cuDNN, in one, two or three dimensions.

Which kernel of which API, :mod:`symdnn.gpu.conv.algorithm` chooses.

A batch is cut into calls of at most 65535 images and 2**31 - 1 elements; the gradient of the
kernels then adds up. One-dimensional convolutions are two-dimensional ones of height 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.conv.algorithm import (
    DIRECTIONS,
    ConvAlgorithm,
    ConvSignature,
    NoAlgorithm,
    choose,
    wanted_algorithm,
)
from symdnn.gpu.conv.candidate import CandidateRun
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.graph import ALIGNMENT
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    WITH_BFLOAT16,
    CudnnKernel,
    copy,
    factor,
    is_empty,
    most_rows,
    pieces,
    rows,
    tensor,
    zero,
)
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import ask, device_index
from symdnn.graph.kernel import Call, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.gpudnn import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW, compute_precision
from symdnn.tuning.overrides import algorithm_for

__all__ = ["ConvKernel", "KERNELS", "signature"]

#: (data, accumulation) that cuDNN convolves in.
_CONFIGURATIONS = {
    ("float16", "float16"), ("float16", "float32"), ("bfloat16", "float32"),
    ("float32", "float32"), ("float64", "float64"),
}  # fmt: skip


def shapes(call: Call) -> dict[str, tuple[int, ...]]:
    """Shapes of ``x``, ``w`` and ``y`` in the order N, C, sizes, whatever the layout."""
    roles = DIRECTIONS[call.op.direction].roles  # type: ignore[attr-defined]
    types: Any = (*call.inputs[:2], call.outputs[0])
    return {role: _ordered(tuple(t.shape), layout(call)) for role, t in zip(roles, types)}


def layout(call: Call) -> str:
    """How the arrays lie: ``NCHW`` or ``NHWC``, also for one dimension and for three."""
    return str(getattr(call.op, "layout", "NCHW"))


def _ordered(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape if layout == "NCHW" else (shape[0], shape[-1], *shape[1:-1])


def signature(call: Call) -> ConvSignature:
    """The call for the choice of an algorithm, its batch not yet cut."""
    op: Any = call.op
    found = shapes(call)
    pads = [resolved_padding(p, k, d) for p, k, d in zip(op.padding, found["w"][2:], op.dilation)]
    before = tuple(int(b) for b, _ in pads)
    lead = (1,) * (op.ndim == 1)  # the height of a one-dimensional convolution
    x, w, y = (_raised(found[r]) for r in ("x", "w", "y"))
    dtype: str = call.inputs[0].dtype
    limit = call.hints.workspace_limit
    return ConvSignature(
        direction=op.direction, dtype=dtype, x=x, w=w, y=y,
        padding=(0,) * len(lead) + before, stride=lead + tuple(op.stride),
        dilation=lead + tuple(op.dilation), groups=op.groups, flip=op.flip,
        compute=accumulation(call), allow_tf32=bool(config.dnn.conv.allow_tf32),
        wanted=_wanted(call),
        workspace_limit=int(config.dnn.conv.workspace_limit) if limit is None else limit,
        deterministic=config.deterministic == "more",
        on_unsupported=str(config.dnn.conv.on_unsupported), layout=layout(call),
        legacy_only=op.alpha != 1 or op.beta != 0, named=_is_named(call),
    )  # fmt: skip


def _hint(call: Call) -> str | int | None:
    found: str | int | None = getattr(call.hints, f"algo_{call.op.direction}")  # type: ignore[attr-defined]
    return found


def _wanted(call: Call) -> str | int:
    """The algorithm of the layer's name, else the op's, the hint's, the flag's."""
    op: Any = call.op
    own = algorithm_for(call.node, op.direction)
    return wanted_algorithm(op.direction, op.algo, _hint(call)) if own is None else own


def _is_named(call: Call) -> bool:
    """Whether someone wrote the algorithm down; lowering puts a flag's default into the op."""
    op: Any = call.op
    if algorithm_for(call.node, op.direction) is not None:
        return True
    if _hint(call) is not None or op.algo not in (None, DIRECTIONS[op.direction].default):
        return True
    return config.origin(f"dnn.conv.algo_{op.direction}") != "default"


def _raised(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


def accumulation(call: Call) -> str:
    """The dtype in which the call accumulates: the op's, else the hint's, else the flag's."""
    op: Any = call.op
    wanted = op.precision or call.hints.precision or str(config.dnn.conv.precision)
    return compute_precision(wanted, call.inputs[0].dtype)


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

    @property
    def total_bytes(self) -> int:
        """Its workspace, with room for mirrored kernels."""
        return self.algorithm.candidate.total_bytes(self.signature)


def plan_of(call: Call) -> list[_Piece]:
    """The calls of cuDNN for a call of the op."""
    s, device = signature(call), device_index()
    parts = list(pieces(s.x[0], most_rows(s.x, s.y)))
    if len(parts) > 1 and not _plans_may_run_in_parts(s, parts[0][1]):
        s = replace(s, legacy_only=True)
    made = []
    for start, count in parts:
        part = cut(s, count)
        made.append(_Piece(start, count, part, choose(part, device, call.node)))
    return made


def _plans_may_run_in_parts(s: ConvSignature, count: int) -> bool:
    """The graph API does not add parts up, and wants every part at an aligned address."""
    rows_at = [s.nbytes(role) // s.x[0] * count for role in ("x", "y")]
    return s.direction != "bwd_filter" and not any(n % ALIGNMENT for n in rows_at)


@dataclass(frozen=True)
class ConvKernel(CudnnKernel):
    """All three directions. Computes ``alpha * convolution + beta * out``.

    ``parts`` are there once the kernel was settled for a call: later it asks no flag any more.
    """

    name: str = "cudnn.conv"
    parts: tuple[_Piece, ...] = ()
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def settled(self, call: Call) -> ConvKernel:
        """The kernel with the algorithms chosen for ``call``."""
        return self if _is_nothing(call) else replace(self, parts=tuple(plan_of(call)))

    def _plan(self, call: Call) -> list[_Piece]:
        return list(self.parts) or plan_of(call)

    def refuses_types(self, call: Call) -> str | None:
        """Padding that differs before and after, other accumulation, more dimensions."""
        op: Any = call.op
        if any(not isinstance(p, str) and p[0] != p[1] for p in op.padding):
            return f"cuDNN pads alike before and after, not {op.padding}"
        compute, dtype = accumulation(call), call.inputs[0].dtype
        if (dtype, compute) not in _CONFIGURATIONS:
            return f"cuDNN does not convolve {dtype} in {compute}"
        if op.ndim > 3:
            return "cuDNN convolves in at most three dimensions"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call) -> str | None:
        """Images too large, and what the device says it can't do."""
        found = shapes(call)
        if _is_nothing(call):
            return None
        if most_rows(found["x"], found["y"]) == 0 or prod(found["w"]) >= 2**31:
            return "an image or the kernels have 2**31 elements or more"
        return self._without_any(call)

    def _without_any(self, call: Call) -> str | None:
        """That cuDNN has no algorithm at all; what a named one lacks is raised as an error."""
        try:
            plan_of(call)
        except NoAlgorithm as error:
            return str(error)
        return None

    def accepts(self, index: int, array: RawArray) -> bool:
        """Contiguous operands, at addresses that plans of the graph API take."""
        return array.contiguous and array.ptr % ALIGNMENT == 0

    def workspace_bytes(self, call: Call) -> int:
        """The largest of the pieces', and room for mirrored kernels."""
        if _is_nothing(call):
            return 0
        return max(p.total_bytes for p in self._plan(call))

    def details(self, call: Call) -> str:
        """What cuDNN computes, and by which algorithm."""
        if _is_nothing(call):
            return "nothing: it is empty"
        plan = self._plan(call)
        parts = f", in {len(plan)} parts" if len(plan) > 1 else ""
        return f"{plan[0].signature}; algorithm {plan[0].algorithm}{parts}"

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``; of a batch in parts, that of the first."""
        if _is_nothing(call):
            return None
        plan = self._plan(call)
        return library_use(plan[0].signature, plan[0].algorithm, max(p.total_bytes for p in plan))

    def launcher(self, call: Call) -> Any:
        """Descriptors are made here; a launch only passes pointers."""
        if _is_nothing(call):
            return _Empty(call)
        return _Bound(call, self._plan(call))


def _is_nothing(call: Call) -> bool:
    """Whether there is nothing to convolve, or no result."""
    return any(0 in s for s in shapes(call).values())


def library_use(s: ConvSignature, chosen: ConvAlgorithm, nbytes: int) -> LibraryUse:
    """What was asked for and what runs, in words."""
    candidate = chosen.candidate
    engine = candidate.number if candidate.plan is None else candidate.plan.engine
    why = [chosen.source, *[f"instead of {chosen.instead_of}"] * bool(chosen.instead_of)]
    why += ["kernels mirrored by a copy"] * candidate.flip_by_copy
    return LibraryUse(
        requested=str(s.wanted) if s.named else f"{s.wanted} (default)", used=candidate.name,
        api=candidate.api, engine=str(engine), workspace_bytes=nbytes,
        deterministic=candidate.deterministic, precision=precision(s), ms=chosen.ms,
        why=", ".join(why),
    )  # fmt: skip


def precision(s: ConvSignature) -> str:
    """How numbers are stored, multiplied and summed."""
    tf32 = ", tf32" if s.dtype == "float32" and s.allow_tf32 else ""
    sums = f", sums in {s.compute}" if s.compute != s.dtype else ""
    return f"{s.dtype} {s.layout}{tf32}{sums}"


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
    """A call with what launches its pieces."""

    def __init__(self, call: Call, plan: list[_Piece]) -> None:
        op: Any = call.op
        self.op, self.plan = op, plan
        self.roles = DIRECTIONS[op.direction].roles
        self.runs = [_prepared(p) for p in plan]

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        out = outputs[0]
        if self.op.output_index is not None:
            copy(env, inputs[self.op.output_index], out)
        arrays = dict(zip(self.roles, (*inputs[:2], out)))
        adds_up = self.roles[2] == "w"
        for p, run in zip(self.plan, self.runs):
            beta = 1.0 if p.start and adds_up else float(self.op.beta)
            run(env, self._part(p, arrays), float(self.op.alpha), beta)

    def _part(self, p: _Piece, arrays: dict[str, RawArray]) -> dict[str, RawArray]:
        if len(self.plan) == 1:
            return arrays
        return {r: x if r == "w" else rows(x, p.start, p.count) for r, x in arrays.items()}


def _prepared(p: _Piece) -> CandidateRun:
    """What launches a piece; a plan of the graph API is built for the device's handle."""
    candidate, s = p.algorithm.candidate, p.signature
    if candidate.plan is None:
        return candidate.prepared(s, None)
    found = ask(lambda handle: candidate.prepared(s, handle), None)
    assert found is not None, "a plan was chosen without a device"
    return found


KERNELS: tuple[Row, ...] = (
    *(with_fallbacks(op, ConvKernel()) for op in (GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW)),
)
