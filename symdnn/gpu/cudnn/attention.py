"""Attention and its gradient by cuDNN's graphs (``sdpa``, ``sdpa_backward``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from symdnn.graph.kernel import Call, Row
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

__all__ = ["KERNELS", "AttentionGraph", "AttentionKernel"]

_FORWARD = ("q", "k", "v"), ("o", "stats")
_BACKWARD = ("q", "k", "v", "o", "stats", "do"), ("dq", "dk", "dv")
_LENGTHS = ("key_lengths", "query_lengths")
_ALIGNED_ELEMENTS = 8  # 16 bytes of a 16-bit type


@dataclass(frozen=True)
class AttentionGraph(GraphForm):
    """Attention, or its gradient. Shapes and strides, in elements, are by role.

    The log-sum-exp (``stats``) has a feature of size 1, lengths are (batch, 1, 1, 1).
    """

    name = "symdnn_attention"

    how: Scores
    dtype: str
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    backward: bool
    deterministic: bool

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
            for r in (*reads, *_LENGTHS)
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
        """Masks in the frontend's words."""
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
        return found


def _dtype_of(role: str, dtype: str) -> str:
    return "int32" if role in _LENGTHS else "float32" if role == "stats" else dtype


@dataclass(frozen=True)
class AttentionKernel(CudnnKernel):
    """A plan of cuDNN's heuristics. Operands may have any strides that keep features together."""

    name: str = "cudnn.attention"
    dtypes = frozenset({"float16", "bfloat16", "float32"})

    def accepts(self, index: int, array: RawArray) -> bool:
        """Rows of features that are contiguous and aligned; other operands are contiguous."""
        if array.ndim != 4 or array.dtype == "float32":
            return bool(array.contiguous)
        step = array.itemsize
        fits = all(s > 0 and s % (_ALIGNED_ELEMENTS * step) == 0 for s in array.strides[:3])
        return array.strides[3] == step and fits and array.ptr % graph.ALIGNMENT == 0

    def result_axes(self, call: Call, index: int) -> Sequence[int] | None:
        """(batch, time, heads, features), so that the heads are joined without a copy."""
        return (0, 2, 1, 3) if len(call.outputs[index].shape) == 4 else None

    def refuses_sizes(self, call: Call) -> str | None:
        """Sizes for which cuDNN has no plan."""
        if is_empty(*call.inputs[:3]):
            return "it is empty"
        return query_cudnn(lambda handle: _first_plan(_form(call), handle)[1], "") or None

    def workspace_bytes(self, call: Call) -> int:
        """That of the plan for contiguous operands."""
        found = query_cudnn(lambda handle: _first_plan(_form(call), handle)[0], None)
        return found.workspace_bytes if found else 0

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
        room = self.workspace_bytes(call)
        runs: dict[Any, Any] = {}

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
            at = zip(base.roles, arrays, strict=True)
            run(env.cudnn, {role: x.ptr for role, x in at}, env.workspace)

        return launch


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


def _form(call: Call, arrays: Sequence[RawArray] | None = None) -> AttentionGraph:
    """The graph for contiguous operands, or for these arrays."""
    op: Any = call.op
    backward = isinstance(op, GpuDnnAttentionGrad)
    reads, writes = _BACKWARD if backward else _FORWARD
    roles = (*reads, *op.how.extras, *writes)
    shapes = []
    for i, (role, t) in enumerate(zip(roles, (*call.inputs, *call.outputs), strict=True)):
        shape: Any = tuple(t.shape)
        if arrays is not None and len(shape) == 4:
            strides = tuple(s // arrays[i].itemsize for s in arrays[i].strides)
        else:
            shape = (*shape, 1) if role == "stats" else shape
            shape = (*shape, 1, 1, 1) if role in _LENGTHS else shape
            strides = c_strides(shape, 1)
        shapes.append((role, shape, strides))
    return AttentionGraph(
        op.how, str(call.inputs[0].dtype), tuple(shapes), backward,
        config.deterministic == "more",
    )  # fmt: skip


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnAttention, AttentionKernel()),
    with_fallbacks(GpuDnnAttentionGrad, AttentionKernel()),
)
