"""Attention and its gradient by cuDNN's graphs (``sdpa``, ``sdpa_backward``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.graph import GraphBuilder, GraphForm
from symdnn.gpu.cudnn.graph_plan import GraphPlan, Limits
from symdnn.gpu.cudnn.kernel import CudnnKernel, is_empty
from symdnn.gpu.device.array import RawArray, c_strides
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.gpu.kernels.copy import strided_copy
from symdnn.graph.kernel import Call, Row
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

_FORWARD = ("q", "k", "v"), ("o", "stats")
_BACKWARD = ("q", "k", "v", "o", "stats", "do"), ("dq", "dk", "dv")
_LENGTHS = ("key_lengths", "query_lengths")
#: What cuDNN's generator reads: the key and the counter of a random state.
_SEEDS = ("seed", "offset")
_MASKS = ("mask", "dmask")
_ALIGNED_ELEMENTS = 8  # 16 bytes of a 16-bit type
#: Room for both seeds at the front of the workspace, each aligned.
_SEEDS_BYTES = 256


@dataclass(frozen=True)
class AttentionGraph(GraphForm):
    """Attention, or its gradient. Shapes and strides, in elements, are by role.

    The log-sum-exp (``stats``) has a feature of size 1, lengths are (batch, 1, 1, 1). A mask has
    the scores' sizes, with a stride of 0 where it broadcasts; in place of its batch and heads it
    may have 1. Probabilities are dropped at the rate ``dropout``.
    """

    name = "symdnn_attention"

    how: Scores
    dtype: str
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    backward: bool
    deterministic: bool
    dropout: float = 0.0

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role, _, _ in self.shapes)

    @property
    def limits(self) -> Limits:
        return Limits((), self.deterministic)

    def describe(self, graph: GraphBuilder) -> None:
        at = {role: (shape, strides) for role, shape, strides in self.shapes}
        reads, writes = _BACKWARD if self.backward else _FORWARD
        given = {
            r: graph.input(r, *at[r], _dtype_of(r, self.dtype))
            for r in (*reads, *_MASKS, *_LENGTHS, *_SEEDS)
            if r in at
        }
        settings = self._settings(given)
        features = at["q"][0][3]
        settings["attn_scale"] = features**-0.5 if self.how.scale is None else self.how.scale
        if self.backward:
            found = graph.add(
                "sdpa_backward", q=given["q"], k=given["k"], v=given["v"], o=given["o"],
                dO=given["do"], stats=given["stats"],
                use_deterministic_algorithm=self.deterministic, **settings,
            )  # fmt: skip
        else:
            found = graph.add(
                "sdpa", q=given["q"], k=given["k"], v=given["v"], generate_stats=True, **settings
            )
        for role, value in zip(writes, found, strict=True):
            graph.output(value, role, *at[role], _dtype_of(role, self.dtype))

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """Masks and dropout in the frontend's words."""
        how, names = self.how, frontend.compiled().diagonal_alignment
        found: dict[str, Any] = {}
        if how.right is not None:
            found["diagonal_band_right_bound"] = how.right
            found["diagonal_alignment"] = names.BOTTOM_RIGHT if how.bottom_right else names.TOP_LEFT
        if how.left is not None:
            found["diagonal_band_left_bound"] = how.left + 1
        if "key_lengths" in given:
            found |= {
                "use_padding_mask": True, "seq_len_q": given["query_lengths"],
                "seq_len_kv": given["key_lengths"],
            }  # fmt: skip
        found |= {"bias" if r == "mask" else "dBias": given[r] for r in _MASKS if r in given}
        if "seed" in given:
            found["dropout"] = (self.dropout, given["seed"], given["offset"])
        return found


def _dtype_of(role: str, dtype: str) -> str:
    if role in _SEEDS:
        return "int64"
    return "int32" if role in _LENGTHS else "float32" if role == "stats" else dtype


@dataclass(frozen=True)
class AttentionKernel(CudnnKernel):
    """A plan of cuDNN's heuristics. Operands may have any strides that keep features together."""

    name: str = "cudnn.attention"
    #: How many operands come before the extras.
    operands: int = len(_FORWARD[0])
    dtypes = frozenset({"float16", "bfloat16", "float32"})

    def accepts(self, index: int, array: RawArray) -> bool:
        """Rows of features that are contiguous and aligned; other operands are contiguous."""
        if array.ndim != 4 or array.dtype == "float32" or index >= self.operands:
            return bool(array.contiguous) and (array.ndim != 4 or array.ptr % graph.ALIGNMENT == 0)
        step = array.itemsize
        fits = all(s > 0 and s % (_ALIGNED_ELEMENTS * step) == 0 for s in array.strides[:3])
        return array.strides[3] == step and fits and array.ptr % graph.ALIGNMENT == 0

    def writes(self, call: Call, index: int, array: RawArray) -> bool:
        """In the layouts in which it reads queries, keys, values and their gradients."""
        of_a_mask = index == len(_BACKWARD[1])
        return array.ndim == 4 and not of_a_mask and self.accepts(0, array)

    def result_axes(self, call: Call, index: int) -> Sequence[int] | None:
        """(batch, time, heads, features), so that the heads are joined without a copy."""
        of_a_mask = index == len(_BACKWARD[1])
        return (0, 2, 1, 3) if len(call.outputs[index].shape) == 4 and not of_a_mask else None

    def refuses_sizes(self, call: Call) -> str | None:
        """Sizes for which cuDNN has no plan."""
        if is_empty(*call.inputs[:3]):
            return "it is empty"
        form = _form(call)
        # Both directions draw the same numbers, so both are cuDNN's or none.
        forms = [form, _other_direction(form)] if form.dropout else [form]
        return next(filter(None, map(_why_no_plan, forms)), None)

    def workspace_bytes(self, call: Call) -> int:
        """That of the plan for contiguous operands, and the seeds'."""
        form = _form(call)
        found = query_cudnn(lambda handle: _first_plan(form, handle)[0], None)
        return _front_bytes(form) + (found.workspace_bytes if found else 0)

    def details(self, call: Call) -> str:
        """Settings and shapes."""
        form = _form(call)
        what = "sdpa_backward" if form.backward else "sdpa"
        return f"{what} of {form.dtype}, {form.how}, " + ", ".join(
            f"{r} {s}" for r, s, _ in form.shapes
        )

    def launcher(self, call: Call) -> Any:
        """Plans by the operands' strides, built when they are met first."""
        base = _form(call)
        front = _front_bytes(base)
        room = self.workspace_bytes(call) - front
        runs: dict[Any, Any] = {}
        names = [*_operand_names(call.op), *base.roles[-len(call.outputs) :]]

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            arrays = (*inputs, *outputs)
            strides = tuple(x.strides for x in arrays)
            run = runs.get(strides)
            if run is None:
                form = _form(call, arrays)
                plan, why = _first_plan(form, env.cudnn, room)
                if plan is None:
                    raise CudnnError(f"{base.name}: no plan for strides {strides}: {why}")
                run = runs[strides] = graph.launch(form, plan, env.cudnn)
            pointers = {role: x.ptr for role, x in zip(names, arrays, strict=True)}
            if front:
                pointers |= _seeds(env, pointers["state"])
            run(env.cudnn, pointers, env.workspace + front)

        return launch


def _front_bytes(form: AttentionGraph) -> int:
    """Bytes of the workspace before cuDNN's own."""
    return _SEEDS_BYTES if form.dropout else 0


def _seeds(env: LaunchEnv, state: int) -> dict[str, int]:
    """The aligned places in the workspace to which key and counter of a state are copied."""
    step = graph.ALIGNMENT
    source = RawArray(state, (len(_SEEDS),), "uint64")
    strided_copy(env, source, RawArray(env.workspace, source.shape, "uint64", (step,)))
    return {name: env.workspace + i * step for i, name in enumerate(_SEEDS)}


def _why_no_plan(form: AttentionGraph) -> str:
    return query_cudnn(lambda handle: _first_plan(form, handle)[1], "")


def _first_plan(
    form: AttentionGraph, handle: int, room_bytes: int | None = None
) -> tuple[GraphPlan | None, str]:
    """cuDNN's first plan whose workspace has room, or why there is none."""
    for most in (1, graph.ALL_PLANS):
        found, why = graph.plans(form, handle, most=most)
        fits = [p for p in found if room_bytes is None or p.workspace_bytes <= room_bytes]
        if fits or not found:
            return (fits[0] if fits else None), why
    return None, f"no plan has room in a workspace of {room_bytes} bytes"


def _operand_names(op: Any) -> tuple[str, ...]:
    """The operands of an op, in order."""
    reads, _ = _BACKWARD if isinstance(op, GpuDnnAttentionGrad) else _FORWARD
    return (*reads, *op.how.extras)


def _form(call: Call, arrays: Sequence[RawArray] | None = None) -> AttentionGraph:
    """The graph for contiguous operands, or for these arrays."""
    op: Any = call.op
    backward = isinstance(op, GpuDnnAttentionGrad)
    _, writes = _BACKWARD if backward else _FORWARD
    names = _operand_names(op)
    results = ("dq", "dk", "dv", "dmask")[: len(call.outputs)] if backward else writes
    scores: Any = (call.inputs[0].shape[2], call.inputs[1].shape[2])
    shapes: list[_Shaped] = []
    for i, (role, t) in enumerate(zip((*names, *results), (*call.inputs, *call.outputs))):
        shapes += _shaped(role, tuple(t.shape), arrays[i] if arrays else None, scores)
    return AttentionGraph(
        op.how, str(call.inputs[0].dtype), tuple(shapes), backward,
        config.deterministic == "more", op.dropout,
    )  # fmt: skip


_Shaped = tuple[str, tuple[int, ...], tuple[int, ...]]


def _shaped(
    role: str, shape: Any, array: RawArray | None, scores: tuple[int, int]
) -> list[_Shaped]:
    """What the graph reads or writes for an operand or a result: contiguous, or this array."""
    if role == "rate":
        return []
    if role == "state":
        return [(seed, (1, 1, 1, 1), (1, 1, 1, 1)) for seed in _SEEDS]
    if role in _MASKS:
        return [(role, (*shape[:2], *scores), _spread(shape))]
    if array is not None and len(shape) == 4:
        return [(role, shape, tuple(s // array.itemsize for s in array.strides))]
    ones = (1,) if role == "stats" else (1, 1, 1) if role in _LENGTHS else ()
    return [(role, (*shape, *ones), c_strides((*shape, *ones), 1))]


def _spread(mask: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous mask with one entry for each query and key."""
    steps = c_strides(mask, 1)
    last = [0 if own == 1 else step for own, step in zip(mask[2:], steps[2:], strict=True)]
    return (*steps[:2], *last)


def _other_direction(form: AttentionGraph) -> AttentionGraph:
    """The gradient of an attention, or the attention of a gradient, of contiguous operands."""
    at = {role: shape for role, shape, _ in form.shapes}
    at |= {"do": at["o"], **{f"d{r}": at[r] for r in _FORWARD[0]}}
    reads, writes = _FORWARD if form.backward else _BACKWARD
    kept = {r: (r, s, t) for r, s, t in form.shapes if r in ("mask", *_LENGTHS, *_SEEDS)}
    contiguous = [(r, at[r], c_strides(at[r], 1)) for r in (*reads, *writes)]
    shapes = (*contiguous[: len(reads)], *kept.values(), *contiguous[len(reads) :])
    return replace(form, shapes=shapes, backward=not form.backward)


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnAttention, AttentionKernel()),
    with_fallbacks(GpuDnnAttentionGrad, AttentionKernel(operands=len(_BACKWARD[0]))),
)
