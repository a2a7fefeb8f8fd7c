"""Convolution and its two gradients by cuDNN, in one, two or three dimensions.

:mod:`symdnn.gpu.conv.algorithm` chooses the API and the algorithm.

A batch is split into calls of at most 65535 samples and 2**31 - 1 elements; the gradient of the
filters is then summed over them. A 1-D convolution is a 2-D one of height 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.conv.algorithm import (
    DIRECTIONS,
    ConvAlgorithm,
    ConvSignature,
    NoAlgorithm,
    UnsupportedAlgorithm,
    choose,
    log_fallback,
    wanted_algorithm,
)
from symdnn.gpu.conv.blocklist import tolerance
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.checked import CheckedConv, InUse
from symdnn.gpu.conv.together import (
    cut,
    first_with_room,
    is_chosen_together,
    runs_plans_in_parts,
    ways,
)
from symdnn.gpu.conv.tuning import candidate_record
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.graph import ALIGNMENT
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    WITH_BFLOAT16,
    CudnnKernel,
    copy,
    factor,
    is_empty,
    max_rows,
    pieces,
    refuses_layout,
    rows,
    tensor,
    zero,
)
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import device_index, query_cudnn
from symdnn.graph.kernel import Alternative, Call, Row
from symdnn.graph.library_use import Fallback, LibraryUse
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.nn.conv_words import allows_tf32
from symdnn.ops.vendor.gpudnn import GpuDnnConvGradW, compute_precision
from symdnn.tuning import fallbacks
from symdnn.tuning.division import Division
from symdnn.tuning.overrides import algorithm_for
from symdnn.tuning.replay import Recorded

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: (dtype of data, dtype of accumulation) that cuDNN supports.
_CONFIGURATIONS = {
    ("float16", "float16"), ("float16", "float32"), ("bfloat16", "float32"),
    ("float32", "float32"), ("float64", "float64"),
}  # fmt: skip


def shapes(call: Call) -> dict[str, tuple[int, ...]]:
    """Shapes of ``x``, ``w`` and ``y`` as (N, C, sizes), for any layout."""
    roles = DIRECTIONS[call.op.direction].roles  # type: ignore[attr-defined]
    types = (*call.inputs[:2], call.outputs[0])
    return {role: _ordered(tuple(t.shape), layout(call)) for role, t in zip(roles, types)}


def layout(call: Call) -> str:
    """The layout of all arrays, ``NCHW`` or ``NHWC``, also for one and three dimensions."""
    return str(getattr(call.op, "layout", "NCHW"))


def _ordered(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape if layout == "NCHW" else (shape[0], shape[-1], *shape[1:-1])


def signature(call: Call) -> ConvSignature:
    """The signature of a call with its whole batch."""
    op: Any = call.op
    found = shapes(call)
    pads = [resolved_padding(p, k, d) for p, k, d in zip(op.padding, found["w"][2:], op.dilation)]
    before = tuple(int(b) for b, _ in pads)
    lead = (1,) * (op.ndim == 1)  # the height of a one-dimensional convolution
    x, w, y = (_raised(found[r]) for r in ("x", "w", "y"))
    dtype: str = call.inputs[0].dtype
    limit = call.hints.workspace_limit
    s = ConvSignature(
        direction=op.direction, dtype=dtype, x=x, w=w, y=y,
        padding=(0,) * len(lead) + before, stride=lead + tuple(op.stride),
        dilation=lead + tuple(op.dilation), groups=op.groups, flip=op.flip,
        compute=accumulation(call), allow_tf32=allows_tf32(call.hints.precision),
        wanted="",
        workspace_limit=int(config.dnn.conv.workspace_limit) if limit is None else limit,
        deterministic=config.deterministic == "more",
        on_unsupported=str(config.dnn.conv.on_unsupported), layout=layout(call),
        legacy_only=op.alpha != 1 or op.beta != 0,
    )  # fmt: skip
    own = algorithm_for(call.node, op.direction, lambda: s.question)
    if own is not None:
        return replace(s, wanted=own)
    wanted = wanted_algorithm(op.direction, op.algo, _hint(call))
    return replace(s, wanted=wanted, named=_is_named(call))


def _hint(call: Call) -> str | int | None:
    found: str | int | None = getattr(call.hints, f"algo_{call.op.direction}")  # type: ignore[attr-defined]
    return found


def _is_named(call: Call) -> bool:
    """Whether op, hint or flag name the algorithm. (Lowering puts a flag's default into the op.)"""
    op: Any = call.op
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


@dataclass(frozen=True)
class Piece:
    """A part of the batch, which is one call of cuDNN.

    ``in_use`` is the algorithm that runs: ``algorithm``, or what replaced it when it was wrong.
    """

    start: int
    count: int
    signature: ConvSignature
    algorithm: ConvAlgorithm
    in_use: InUse = field(compare=False)

    @property
    def planned_bytes(self) -> int:
        """The workspace that a plan gives, with room for mirrored filters."""
        return self.algorithm.candidate.total_bytes(self.signature)

    @property
    def total_bytes(self) -> int:
        """The workspace of the algorithm in use."""
        return self.in_use.algorithm.candidate.total_bytes(self.signature)


def piece(start: int, count: int, s: ConvSignature, chosen: ConvAlgorithm) -> Piece:
    """A part of the batch with the algorithm that was chosen for it."""
    return Piece(start, count, s, chosen, InUse(chosen))


def plan_of(call: Call) -> list[Piece]:
    """The calls of cuDNN for a call of the op."""
    s, device = signature(call), device_index()
    recorded = s.wanted.counts if isinstance(s.wanted, Recorded) else ()
    parts = list(_starts(recorded) if recorded else pieces(s.x[0], max_rows(s.x, s.y)))
    if len(parts) > 1 and not runs_plans_in_parts(s, parts[0][1]):
        s = replace(s, legacy_only=True)
    made: list[Piece] = []
    for start, count in parts:
        part = cut(s, count)
        wanted = s.wanted
        if isinstance(wanted, Recorded):
            wanted = wanted.of_part(len(made))
        elif is_chosen_together(s):  # this one only runs if it leaves nothing to choose
            wanted = "guess_once"
        asked = part if wanted == part.wanted else replace(part, wanted=wanted)
        chosen = choose(asked, device, call.node)
        made.append(piece(start, count, part, chosen))
    return made


def _starts(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for count in counts:
        yield start, count
        start += count


_Division = Division[tuple[ConvSignature, Candidate]]


def _pieces_of(division: _Division) -> Iterator[Piece]:
    start = 0
    for part in division.parts:
        s, candidate = part.way
        chosen = ConvAlgorithm(candidate, "chosen for dnn.workspace_budget", ms=part.ms)
        yield piece(start, part.count, s, chosen)
        start += part.count


@dataclass(frozen=True)
class ConvKernel(CudnnKernel):
    """All three directions. Computes ``alpha * convolution + beta * out``.

    ``settled`` sets ``parts`` for a call; flags that change later have no effect on them.
    """

    name: str = "cudnn.conv"
    parts: tuple[Piece, ...] = ()
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def settled(self, call: Call) -> ConvKernel:
        """The kernel with the algorithms chosen for ``call``; fallbacks are logged."""
        return self if _is_nothing(call) else self._of(plan_of(call), call)

    def _of(self, plan: list[Piece], call: Call) -> ConvKernel:
        for p in plan:
            log_fallback(p.signature, p.algorithm, call.node)
        return replace(self, parts=tuple(plan))

    def _plan(self, call: Call) -> list[Piece]:
        return list(self.parts) or plan_of(call)

    def refuses_types(self, call: Call) -> str | None:
        """Asymmetric padding, unsupported accumulators, more than three dimensions."""
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
        """Samples that are too large, and calls for which cuDNN has no algorithm."""
        try:
            found = self._searched(call)
        except UnsupportedAlgorithm:  # of a named one: `settled` raises it with the user's line
            return None
        return found if isinstance(found, str) else None

    def chosen(self, call: Call) -> ConvKernel | str:
        """The kernel with its algorithms, or why there are none, by one search."""
        found = refuses_layout(call, self.layouts) or self.refuses_types(call)
        plan = found or self._searched(call)
        return plan if isinstance(plan, str) else self._of(plan, call)

    def _searched(self, call: Call) -> list[Piece] | str:
        """The calls of cuDNN, or why it has no algorithm at all."""
        found = shapes(call)
        if _is_nothing(call):
            return []
        if max_rows(found["x"], found["y"]) == 0 or prod(found["w"]) >= 2**31:
            return "an image or the kernels have 2**31 elements or more"
        try:
            return plan_of(call)
        except NoAlgorithm as error:
            none = Fallback("cuDNN", "another kernel", str(error))
            fallbacks.log(none, call.op.direction, call.node)  # type: ignore[attr-defined]
            return str(error)

    def accepts(self, index: int, array: RawArray) -> bool:
        """Contiguous operands at addresses with the graph API's alignment."""
        return array.contiguous and array.ptr % ALIGNMENT == 0

    def workspace_bytes(self, call: Call) -> int:
        """The largest workspace of all parts, with room for mirrored filters."""
        if _is_nothing(call):
            return 0
        return max(p.planned_bytes for p in self._plan(call))

    def capturable(self, call: Call) -> bool:
        """Not where each call is checked."""
        return str(config.dnn.check) != "always"

    def alternatives(self, call: Call, room_bytes: int) -> list[Alternative]:
        """The measured ways to run it, in parts too; one if its algorithm is named."""
        if _is_nothing(call) or device_index() is None:
            return []
        s = signature(call)
        own, error = self.settled(call), tolerance(s)
        if not is_chosen_together(s):
            return [Alternative(own, own.workspace_bytes(call), error=error)]
        none: list[_Division] = []
        most = max_rows(s.x, s.y)
        found = query_cudnn(lambda handle: ways(s, handle, room_bytes, most), none)
        made = [
            Alternative(
                replace(self, parts=tuple(_pieces_of(d))), d.workspace_bytes, d.ms, d.millijoules,
                d.error,
            )
            for d in found
        ]  # fmt: skip
        if not any(a.workspace_bytes <= room_bytes for a in made):
            made += [Alternative(k, k.workspace_bytes(call), error=error)
                     for k in (own, *self._least(s, room_bytes))]  # fmt: skip
        return made

    def _least(self, s: ConvSignature, room_bytes: int) -> list[ConvKernel]:
        """The first guess that has room, else the one with the least workspace."""
        found = query_cudnn(lambda handle: first_with_room(s, handle, room_bytes), None)
        if found is None or s.x[0] > max_rows(s.x, s.y):
            return []
        chosen = ConvAlgorithm(found[1], "not measured, with room in dnn.workspace_budget")
        return [replace(self, parts=(piece(0, s.x[0], s, chosen),))]

    def details(self, call: Call) -> str:
        """The computation, and the algorithm."""
        if _is_nothing(call):
            return "nothing: it is empty"
        plan = self._plan(call)
        parts = f", in {len(plan)} parts" if len(plan) > 1 else ""
        return f"{plan[0].signature}; algorithm {plan[0].in_use.algorithm}{parts}"

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``; for a batch in parts the algorithm of the first."""
        if _is_nothing(call):
            return None
        plan = self._plan(call)
        first, nbytes = plan[0].in_use, max(p.total_bytes for p in plan)
        use = library_use(cut(plan[0].signature, sum(p.count for p in plan)), first, nbytes)
        if len(plan) == 1:
            return use
        used = [p.in_use.algorithm for p in plan]
        times = [a.ms for a in used]
        counts = ", ".join(f"{p.count} by {a.candidate.name}" for p, a in zip(plan, used))
        parts = [{"count": p.count, **candidate_record(a.candidate)} for p, a in zip(plan, used)]
        return replace(
            use, ms=None if None in times else sum(t or 0.0 for t in times),
            deterministic=all(a.candidate.deterministic for a in used),
            why=f"{use.why}; samples in {len(plan)} parts: {counts}",
            record={**use.record, "parts": parts},
        )  # fmt: skip

    def launcher(self, call: Call, room_bytes: int | None = None) -> Any:
        """A launch that only passes pointers; descriptors are made here.

        ``room_bytes`` is the workspace that the plan gives, if not :meth:`workspace_bytes`.
        """
        if _is_nothing(call):
            return _Empty(call)
        room = self.workspace_bytes(call) if room_bytes is None else room_bytes
        return _Bound(call, self._plan(call), room)


def _is_nothing(call: Call) -> bool:
    """Whether an operand or the result is empty."""
    return any(0 in s for s in shapes(call).values())


def library_use(s: ConvSignature, in_use: InUse, nbytes: int) -> LibraryUse:
    """The row of ``f.dnn_report()``."""
    chosen = in_use.algorithm
    candidate = chosen.candidate
    engine = candidate.number if candidate.plan is None else candidate.plan.engine
    why = [chosen.source, *[f"instead of {chosen.instead_of}"] * bool(chosen.instead_of)]
    why += ["filters flipped by a copy"] * candidate.flip_by_copy
    wanted = s.wanted.asked if isinstance(s.wanted, Recorded) else str(s.wanted)
    return LibraryUse(
        requested=wanted if s.named else f"{wanted} (default)", used=candidate.name,
        api=candidate.api, engine=str(engine), workspace_bytes=nbytes,
        deterministic=candidate.deterministic, precision=precision(s), ms=chosen.ms,
        why=", ".join(why), fallback=chosen.fallback, check=in_use.check,
        record={**candidate_record(candidate), "for": s.question},
    )  # fmt: skip


def precision(s: ConvSignature) -> str:
    """Dtype, layout and accumulation, for reports."""
    tf32 = ", tf32" if s.dtype == "float32" and s.allow_tf32 else ""
    sums = f", sums in {s.compute}" if s.compute != s.dtype else ""
    return f"{s.dtype} {s.layout}{tf32}{sums}"


class _Empty:
    """A call with empty operands: the result is ``beta * out``."""

    def __init__(self, call: Call) -> None:
        self.op: Any = call.op

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        """Enqueue zeros, or a copy of ``out`` that cuDNN scales."""
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
    """A call with the launches of its parts."""

    def __init__(self, call: Call, plan: list[Piece], room_bytes: int) -> None:
        op: Any = call.op
        self.op, self.plan = op, plan
        self.roles = DIRECTIONS[op.direction].roles
        self.runs = [CheckedConv(p.signature, p.in_use, call.node, room_bytes) for p in plan]

    def __call__(
        self, env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]
    ) -> None:
        out = outputs[0]
        if self.op.output_index is not None:
            copy(env, inputs[self.op.output_index], out)
        arrays = dict(zip(self.roles, (*inputs[:2], out)))
        adds_up = self.roles[2] == "w"
        for p, run in zip(self.plan, self.runs):
            beta = 1.0 if p.start and adds_up else float(self.op.beta)
            run(env, self._part(p, arrays), float(self.op.alpha), beta)

    def _part(self, p: Piece, arrays: dict[str, RawArray]) -> dict[str, RawArray]:
        if len(self.plan) == 1:
            return arrays
        return {r: x if r == "w" else rows(x, p.start, p.count) for r, x in arrays.items()}


KERNELS: tuple[Row, ...] = (with_fallbacks(GpuDnnConvGradW, ConvKernel()),)
