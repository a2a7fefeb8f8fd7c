"""Convolution and its two gradients by oneDNN, in one, two or three dimensions.

Activations lie as the call has them, channels first or last. The primitive may work on another
layout (:func:`_candidates`): then they are reordered. Kernels always are: a plain layout of theirs
leads to oneDNN's slow reference implementation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.kernel import OnednnKernel, Operand, Planned, contiguous, image
from symdnn.cpu.onednn.library import OnednnError, has_bfloat16
from symdnn.cpu.onednn.objects import ALG, PROP, Attributes, Layout, Primitive, primitive
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW
from symdnn.tuning.attempts import Attempt, Bench, measure
from symdnn.tuning.question import Question, answer

__all__ = ["ConvKernel", "post_ops", "KERNELS"]

#: For each op: the operands x, w, y by the primitive's names, and where they are in the call.
_ROLES: dict[type, dict[str, tuple[str, int, bool]]] = {
    OneDnnConv: {"x": ("src", 0, False), "w": ("weights", 1, False), "y": ("dst", 0, True)},
    OneDnnConvGradI: {
        "x": ("diff_src", 0, True), "w": ("weights", 0, False), "y": ("diff_dst", 1, False),
    },
    OneDnnConvGradW: {
        "x": ("src", 0, False), "w": ("diff_weights", 0, True), "y": ("diff_dst", 1, False),
    },
}  # fmt: skip

#: Kernels of so few channels leave backward data's blocks almost empty.
_FEW_CHANNELS = 3
#: Of an image that is a factor in a product of matrices.
_LEAST_PIXELS = 64


class ConvKernel(OnednnKernel):
    """One direction. (``dnnl_convolution_*``)"""

    name = "onednn.conv"

    def __init__(self, *keeps: int) -> None:
        self.keeps = keeps

    @property
    def more_dtypes(self) -> frozenset[str]:  # type: ignore[override]
        """bfloat16, where the CPU computes in it."""
        return frozenset({"bfloat16"} if has_bfloat16() else ())

    def planned(self, call: Call) -> Planned:
        """The primitive in the layout of the flag's choice (``onednn.conv.algo``)."""
        found, late, failure = [], [], None
        for name, make in _candidates(call):
            try:
                planned = make()
            except OnednnError as error:
                failure = error
                continue
            if planned.primitive.is_reference:
                continue
            if _is_slow(call, planned):
                late.append((name, planned))
                continue
            found.append((name, planned))
            if self.chooses() == "guess":
                break
        if not found or self.chooses() == "time":
            found += late
        if not found:
            if failure is not None:
                raise failure
            return make()
        guesses = len(found) == 1 or self.chooses() == "guess"
        name, planned = found[0] if guesses else _fastest(call, found)
        planned.choice = name
        return planned

    def chooses(self) -> str:
        """``onednn.conv.algo``; with ``deterministic=more`` no clock decides."""
        return "guess" if config.deterministic == "more" else str(config.onednn.conv.algo)

    def details(self, call: Call) -> str:
        """The layout, who chose it, the implementation, and what is reordered."""
        planned = self.cached(call)
        return f"{planned.choice}: {planned}" if planned.choice else str(planned)

    def library_use(self, call: Call) -> LibraryUse:
        """The row of ``f.dnn_report()``: which layout, why, and oneDNN's implementation."""
        planned = self.cached(call)
        layout, _, times = planned.choice.partition(" ")
        return LibraryUse(
            self.chooses(), layout, "oneDNN", planned.primitive.implementation,
            planned.workspace_bytes, True, str(call.outputs[0].dtype),
            why=f"{times.strip('()') or 'guessed from the channels'}; {planned}",
        )  # fmt: skip


def post_ops(op: Any) -> tuple[tuple[Any, ...], ...]:
    """What follows: the sum first, then the activation (the bias is an operand)."""
    given: list[tuple[Any, ...]] = [("sum", 1.0)] if op.residual else []
    if op.activation:
        given.append(("eltwise", op.activation, 1.0 if op.activation == "soft_relu" else 0.0, 0.0))
    return tuple(given)


# -- layouts ---------------------------------------------------------------------------------------


def _layouts(call: Call) -> dict[str, Layout]:
    """How the arrays lie."""
    op: Any = call.op
    found = {}
    for role, (_, index, written) in _ROLES[type(op)].items():
        t = (call.outputs if written else call.inputs)[index]
        found[role] = contiguous(t) if role == "w" else image(t, op.layout)
    groups = op.op.groups
    if groups > 1:
        w = found["w"]
        found["w"] = Layout((groups, w.shape[0] // groups, *w.shape[1:]), w.dtype)
    return found


def _candidates(call: Call) -> Iterator[tuple[str, Callable[[], Planned]]]:
    """Names and makers of what may run it, the most promising first.

    oneDNN's own blocks fit channels in multiples of 16; others waste room in them, but not with
    channels last. Images of one to three channels it reads as they are, and their gradient is
    fastest in plain order. So are kernels of one pixel where images lie so: products of matrices.
    """
    lies = _layouts(call)
    channels = lies["x"].shape[1], lies["y"].shape[1]
    order = ["last", "own", "plain"]
    few = isinstance(call.op, OneDnnConvGradI) and channels[0] <= _FEW_CHANNELS
    if few or _is_product(call, lies):
        order = ["plain", "last", "own"]
    elif call.op.layout == "NCHW" and _fits_blocks(*channels):  # type: ignore[attr-defined]
        order = ["own", "last", "plain"]
    if len(lies["x"].shape) == 3:
        order = [name for name in order if name != "last"]
    for name in order:
        yield name, _maker(call, lies, name)


def _is_product(call: Call, lies: dict[str, Layout]) -> bool:
    """Whether each image, channels first, is multiplied by the kernels, which are of one pixel.

    16 images of 56x56, 256 channels to 64, take 4.8 ms so, and 13.7 by oneDNN's own order, into
    which they are copied. Small images are too little for a product each, and what follows one
    (but for a bias) takes oneDNN as long again.
    """
    op: Any = call.op
    one = op.op.groups == 1 and {*lies["w"].shape[2:]} == {1}
    plain = not (getattr(op, "residual", False) or getattr(op, "activation", ""))
    return op.layout == "NCHW" and one and plain and prod(lies["y"].shape[2:]) >= _LEAST_PIXELS


def _is_slow(call: Call, planned: Planned) -> bool:
    """Whether it is a product of matrices for each group: with 4 to 32 groups that took 2 to 15
    times as long as oneDNN's other kernels, changes of the order included."""
    op: Any = call.op
    return op.op.groups > 1 and "gemm" in planned.primitive.implementation


def _fits_blocks(x: int, y: int) -> bool:
    """Whether images of so many channels waste no room in oneDNN's blocks."""
    return y % 16 == 0 and (x % 16 == 0 or x <= _FEW_CHANNELS)


def _maker(call: Call, lies: dict[str, Layout], name: str) -> Callable[[], Planned]:
    def wanted(t: Layout) -> Layout:
        if name == "own":
            return t.any
        return Layout(t.shape, t.dtype) if name == "plain" else t.channels_last()

    def make() -> Planned:
        made = _primitive(call, wanted(lies["x"]), lies["w"], wanted(lies["y"]))
        return Planned(made, _operands(call, lies))

    return make


def _operands(call: Call, lies: dict[str, Layout]) -> list[Operand]:
    op: Any = call.op
    operands = [
        Operand(name, lies[role], index, written,
                op.op.ndim if role == "w" and op.op.flip else 0,
                2 if written and getattr(op, "residual", False) else -1)
        for role, (name, index, written) in _ROLES[type(op)].items()
    ]  # fmt: skip
    if getattr(op, "bias", False):
        operands.append(Operand("bias", _bias(call), len(call.inputs) - 1))
    return operands


def _bias(call: Call) -> Layout:
    t: Any = call.inputs[-1]
    return Layout((int(np.prod(t.shape)),), t.dtype)


def _primitive(call: Call, x: Layout, w: Layout, y: Layout) -> Primitive:
    op: Any = call.op
    conv = op.op
    pads = [
        resolved_padding(p, k, d)
        for p, k, d in zip(conv.padding, w.shape[-conv.ndim :], conv.dilation)
    ]
    before, after = ([int(p[i]) for p in pads] for i in (0, 1))
    settings = (conv.stride, [d - 1 for d in conv.dilation], before, after)
    direct = ALG["direct"]
    if isinstance(op, OneDnnConv):
        bias = _bias(call) if op.bias else None
        attributes = Attributes(*post_ops(op))
        return primitive(
            "convolution_forward", PROP["inference"], direct, x, w.any, bias, y, *settings,
            options={"attributes": attributes},
        )  # fmt: skip
    forward = primitive(
        "convolution_forward", PROP["training"], direct, x, w.any, None, y, *settings
    )
    if isinstance(op, OneDnnConvGradI):
        name = "convolution_backward_data"
        return primitive(name, direct, x, w.any, y, *settings, forward)
    name = "convolution_backward_weights"
    return primitive(name, direct, x, w.any, None, y, *settings, forward)


# -- measured --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    """A layout to work in, and its primitive."""

    name: str
    planned: Planned

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory, and room for reordered operands."""
        return self.planned.workspace_bytes


def _fastest(call: Call, found: list[tuple[str, Planned]]) -> tuple[str, Planned]:
    """The fastest, reorders included: measured now, or by an earlier process."""
    question = _LayoutQuestion(call, [_Way(*one) for one in found])
    best = answer(question)
    if best is None:
        return found[0]
    way: _Way = best.attempt.candidate
    times = ", ".join(
        f"{a.candidate.name} {a.ms:.3g} ms" if a.ms is not None else f"{a.candidate.name} failed"
        for a in best.table or [best.attempt]
    )
    when = "timed" if best.table else "timed before"
    return f"{way.name} ({when}: {times})", way.planned


class _LayoutQuestion(Question[_Way]):
    """In which layout a convolution is the fastest."""

    family = "oneDNN convolution"

    def __init__(self, call: Call, ways: list[_Way]) -> None:
        self.call, self.ways = call, ways

    def key(self) -> dict[str, Any] | None:
        """The call, the processor, oneDNN's version, and the number of threads."""
        known = library.facts()
        return {
            "cpu": jit.processor_digest(), "onednn": known.get("onednn"), "isa": known.get("isa"),
            "threads": thread_pools.settle(), "op": str(self.call.op),
            "types": [str(t) for t in (*self.call.inputs, *self.call.outputs)],
            "among": [w.name for w in self.ways],
        }  # fmt: skip

    def measured(self) -> tuple[list[Attempt[_Way]], str]:
        """The guess first: its result is right."""
        return measure(_LayoutBench(self.call, self.ways), self.ways), ""

    def record(self, best: Attempt[_Way]) -> dict[str, Any]:
        """The layout's name."""
        return {"name": best.candidate.name, "ms": best.ms}

    def revived(self, record: dict[str, Any]) -> Attempt[_Way] | None:
        """The layout, if oneDNN still has a primitive for it."""
        named = (w for w in self.ways if w.name == record.get("name"))
        return next((Attempt(w, float(record["ms"])) for w in named), None)

    def refused(self, reasons: Sequence[str]) -> None:
        """The guess runs."""


class _LayoutBench(Bench[_Way]):
    """Operands of its own; launches include reorders of all operands."""

    def __init__(self, call: Call, ways: list[_Way]) -> None:
        self.error_limit = 3e-2 if call.inputs[0].dtype == "bfloat16" else 1e-3
        rng = np.random.default_rng(0)
        self.arrays = [_drawn(rng, t) for t in call.inputs]
        self.outputs = [np.zeros(t.shape, t.numpy) for t in call.outputs]
        self.scratch = np.empty(max(w.workspace_bytes for w in ways) + 64, np.uint8)
        self.launchers = {w.name: w.planned.launcher() for w in ways}
        self._wanted: list[Any] | None = None

    def check(self, candidate: _Way, good_ms: float) -> tuple[float, float]:
        """How far the results are from those of the guess; the run also fetches code and memory."""
        self._ms(candidate)
        got = [y.astype(np.float64) for y in self.outputs]
        if self._wanted is None:
            self._wanted = got
        pairs = zip(self._wanted, got, strict=True)
        errors = (np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0) for a, b in pairs)
        return float(max(errors)), 0.0

    def time(self, candidate: _Way, good_ms: float) -> float:
        """The shortest of three runs."""
        return min(self._ms(candidate) for _ in range(_RUNS))

    def race(self, candidates: Sequence[_Way]) -> list[float]:
        """The shortest of as many runs of each, in turn."""
        rounds = [[self._ms(c) for c in candidates] for _ in range(_RUNS)]
        return [min(own) for own in zip(*rounds, strict=True)]

    def _ms(self, way: _Way) -> float:
        for y in self.outputs:
            y[...] = 0  # what follows a convolution may add to it
        start = time.perf_counter()
        self.launchers[way.name](self.arrays, self.outputs, self.scratch)
        return (time.perf_counter() - start) * 1e3


_RUNS = 3


def _drawn(rng: np.random.Generator, t: Any) -> Any:
    if not t.is_float:  # sizes, which are not read
        return np.full([d or 0 for d in t.shape], 1, t.numpy)
    return rng.uniform(-1, 1, t.shape).astype(t.numpy)


KERNELS: tuple[Row, ...] = (
    ((OneDnnConv,), (ConvKernel(1),)),
    ((OneDnnConvGradI,), (ConvKernel(0),)),
    ((OneDnnConvGradW,), (ConvKernel(),)),
)
