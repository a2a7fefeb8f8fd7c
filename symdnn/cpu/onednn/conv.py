"""Convolution and its two gradients by oneDNN, in one, two or three dimensions.

Activations are in the call's layout, NCHW or NHWC. If the primitive works in another layout
(:func:`_candidates`), they are reordered. Filters are always reordered: with a plain layout of
filters oneDNN has only its slow reference implementation.
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
from symdnn.cpu.onednn.activated import LOSES_NAN, ActivatedLaunch, runs_apart
from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveOperand,
    activation_layout,
    contiguous,
    convolution_settings,
    of_finite_operands,
)
from symdnn.cpu.onednn.library import OnednnError
from symdnn.cpu.onednn.objects import ALG, PROP, Attributes, Layout, Primitive, primitive
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.ops.lowered.activation import program_of
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW
from symdnn.tuning.attempts import Attempt, Bench
from symdnn.tuning.question import Question, answer

#: For each op the roles x, w, y: oneDNN's name, index in the call, whether it is written.
_ROLES: dict[type, dict[str, tuple[str, int, bool]]] = {
    OneDnnConv: {"x": ("src", 0, False), "w": ("weights", 1, False), "y": ("dst", 0, True)},
    OneDnnConvGradI: {
        "x": ("diff_src", 0, True), "w": ("weights", 0, False), "y": ("diff_dst", 1, False),
    },
    OneDnnConvGradW: {
        "x": ("src", 0, False), "w": ("diff_weights", 0, True), "y": ("diff_dst", 1, False),
    },
}  # fmt: skip

#: Up to so many channels oneDNN's blocks of 16 channels would be almost empty.
_MAX_PLAIN_CHANNELS = 3
#: Pixels of a sample from which on a 1x1 convolution is run as one GEMM for each sample.
_MIN_PIXELS_FOR_GEMM = 64


class ConvKernel(OnednnKernel):
    """One direction of a convolution (``dnnl_convolution_*``)."""

    name = "onednn.conv"

    def __init__(self, *keeps: int) -> None:
        self.keeps = keeps

    takes_bfloat16 = True

    def planned(self, call: Call) -> PlannedPrimitive:
        """The primitive, in the layout that the flag ``onednn.conv.algo`` leads to."""
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

    def bind(self, call: Call) -> Any:
        """A launch; an activation function that loses NaN runs apart, or after a look."""
        return with_activation(super().bind(call), call)

    def chooses(self) -> str:
        """``onednn.conv.algo``; with ``deterministic=more`` nothing is timed."""
        return "guess" if config.deterministic == "more" else str(config.onednn.conv.algo)

    def details(self, call: Call) -> str:
        """The layout and why it was chosen, the implementation, and reordered operands."""
        planned = self.cached(call)
        return f"{planned.choice}: {planned}" if planned.choice else str(planned)

    def library_use(self, call: Call) -> LibraryUse:
        """The row of ``f.dnn_report()``: the layout, why, and oneDNN's implementation."""
        planned = self.cached(call)
        layout, _, times = planned.choice.partition(" ")
        return LibraryUse(
            self.chooses(), layout, "oneDNN", planned.primitive.implementation,
            planned.workspace_bytes, True, str(call.outputs[0].dtype),
            why=f"{times.strip('()') or 'guessed from the channels'}; {planned}",
        )  # fmt: skip


#: oneDNN's ``alpha`` and ``beta`` of activation functions; else 0.
_NUMBERS = {
    "clip": (0.0, 6.0), "hardsigmoid": (1 / 6, 0.5), "hardswish": (1 / 6, 0.5), "swish": (1.0, 0.0),
}  # fmt: skip

#: A relu that leaves NaN as it is, where oneDNN's own gives 0. ``elu`` bounds negative numbers;
#: ``x * clip(x * largest, 0, 1)`` makes -0 of them, and -0 is made 0. A convolution of 3 channels
#: takes 6 to 11 % longer with it, larger ones as long.
_RELU = (("eltwise", "elu", 1.0, 0.0),
         ("eltwise", "hardswish", float(np.finfo("float32").max), 0.0),
         ("eltwise", "linear", 1.0, 0.0))  # fmt: skip


def with_activation(launch: Any, call: Call) -> Any:
    """``launch`` of a primitive with an epilogue, also for operands that lead to NaN."""
    op: Any = call.op
    y: Any = call.outputs[0]
    if not runs_apart(call):
        loses = getattr(op, "activation", "") in LOSES_NAN
        return of_finite_operands(launch, call) if loses else launch
    program = program_of(op.rules.op_of(op.activation), y.dtype)
    assert program is not None, "it is a function of numbers of this dtype"
    return ActivatedLaunch(launch, program, tuple(y.shape))


def post_ops(call: Call) -> tuple[tuple[Any, ...], ...]:
    """oneDNN's post-ops of an epilogue: the sum, then the activation (a bias is an operand)."""
    op: Any = call.op
    found: list[tuple[Any, ...]] = [("sum", 1.0)] if op.residual else []
    if runs_apart(call):
        return tuple(found)
    if op.activation == "relu":
        found += _RELU
    elif op.activation:
        found.append(("eltwise", op.activation, *_NUMBERS.get(op.activation, (0.0, 0.0))))
    return tuple(found)


# -- layouts ---------------------------------------------------------------------------------------


def _layouts(call: Call) -> dict[str, Layout]:
    """The layouts of the arrays, by role."""
    op: Any = call.op
    found = {}
    for role, (_, index, written) in _ROLES[type(op)].items():
        t = (call.outputs if written else call.inputs)[index]
        found[role] = contiguous(t) if role == "w" else activation_layout(t, op.layout)
    groups = op.op.groups
    if groups > 1:
        w = found["w"]
        found["w"] = Layout((groups, w.shape[0] // groups, *w.shape[1:]), w.dtype)
    return found


def _candidates(call: Call) -> Iterator[tuple[str, Callable[[], PlannedPrimitive]]]:
    """Names and makers of planned primitives in several layouts, the most promising first.

    ``last`` is NHWC, ``plain`` NCHW, ``own`` a layout of oneDNN's choice. oneDNN's blocked layouts
    fit multiples of 16 channels; other numbers waste memory in them, but not in NHWC. Activations
    of one to three channels are read without blocks, and their gradient is fastest in NCHW. So are
    1x1 convolutions of NCHW activations, which are GEMMs.
    """
    layouts = _layouts(call)
    channels = layouts["x"].shape[1], layouts["y"].shape[1]
    names = ["last", "own", "plain"]
    few = isinstance(call.op, OneDnnConvGradI) and channels[0] <= _MAX_PLAIN_CHANNELS
    if few or _is_gemm(call, layouts):
        names = ["plain", "last", "own"]
    elif call.op.layout == "NCHW" and _fits_blocks(*channels):  # type: ignore[attr-defined]
        names = ["own", "last", "plain"]
    if len(layouts["x"].shape) == 3:
        names = [name for name in names if name != "last"]
    elif prod((*layouts["x"].shape[2:], *layouts["y"].shape[2:])) == 1:
        # One pixel: NCHW is NHWC. oneDNN 3.2 has GEMMs for NCHW that read and write out of bounds.
        names = [name for name in names if name != "plain"]
    for name in names:
        yield name, _maker(call, layouts, name)


def _is_gemm(call: Call, layouts: dict[str, Layout]) -> bool:
    """Whether it is a 1x1 convolution of NCHW activations, run as one GEMM for each sample.

    16 samples of 56x56, 256 channels to 64, take 4.8 ms this way, and 13.7 in oneDNN's own layout,
    reorders included. Small samples are too little work for a GEMM each. An epilogue other than a
    bias takes oneDNN as long again.
    """
    op: Any = call.op
    one = op.op.groups == 1 and {*layouts["w"].shape[2:]} == {1}
    plain = not (getattr(op, "residual", False) or getattr(op, "activation", ""))
    return (
        op.layout == "NCHW"
        and one
        and plain
        and prod(layouts["y"].shape[2:]) >= _MIN_PIXELS_FOR_GEMM
    )


def _is_slow(call: Call, planned: PlannedPrimitive) -> bool:
    """Whether oneDNN runs a GEMM for each group.

    With 4 to 32 groups that took 2 to 15 times as long as its other kernels, reorders included.
    """
    op: Any = call.op
    return op.op.groups > 1 and "gemm" in planned.primitive.implementation


def _fits_blocks(x: int, y: int) -> bool:
    """Whether x and y of so many channels fill oneDNN's blocks of 16 channels."""
    return y % 16 == 0 and (x % 16 == 0 or x <= _MAX_PLAIN_CHANNELS)


def _maker(call: Call, layouts: dict[str, Layout], name: str) -> Callable[[], PlannedPrimitive]:
    def wanted(t: Layout) -> Layout:
        if name == "own":
            return t.any
        return Layout(t.shape, t.dtype) if name == "plain" else t.channels_last()

    def make() -> PlannedPrimitive:
        made = _primitive(call, wanted(layouts["x"]), layouts["w"], wanted(layouts["y"]))
        return PlannedPrimitive(made, _operands(call, layouts))

    return make


def _operands(call: Call, layouts: dict[str, Layout]) -> list[PrimitiveOperand]:
    op: Any = call.op
    operands = [
        PrimitiveOperand(name, layouts[role], index, written,
                op.op.ndim if role == "w" and op.op.flip else 0,
                2 if written and getattr(op, "residual", False) else -1)
        for role, (name, index, written) in _ROLES[type(op)].items()
    ]  # fmt: skip
    if getattr(op, "bias", False):
        operands.append(PrimitiveOperand("bias", _bias(call), len(call.inputs) - 1))
    return operands


def _bias(call: Call) -> Layout:
    t = call.inputs[-1]
    return Layout((int(np.prod(t.shape)),), t.dtype)


def _primitive(call: Call, x: Layout, w: Layout, y: Layout) -> Primitive:
    op: Any = call.op
    conv = op.op
    settings = convolution_settings(conv, w)
    direct = ALG["direct"]
    if isinstance(op, OneDnnConv):
        bias = _bias(call) if op.bias else None
        attributes = Attributes(*post_ops(call))
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
class _LayoutChoice:
    """A candidate: the name of a layout, and the primitive in it."""

    name: str
    planned: PlannedPrimitive

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory, and memory for reordered operands."""
        return self.planned.workspace_bytes


def _fastest(call: Call, found: list[tuple[str, PlannedPrimitive]]) -> tuple[str, PlannedPrimitive]:
    """The fastest candidate, reorders included: measured now, or by an earlier process."""
    question = _LayoutQuestion(call, [_LayoutChoice(*one) for one in found])
    best = answer(question)
    if best is None:
        return found[0]
    way: _LayoutChoice = best.attempt.candidate
    times = ", ".join(
        f"{a.candidate.name} {a.ms:.3g} ms" if a.ms is not None else f"{a.candidate.name} failed"
        for a in best.table or [best.attempt]
    )
    when = "timed" if best.table else "timed before"
    return f"{way.name} ({when}: {times})", way.planned


class _LayoutQuestion(Question[_LayoutChoice]):
    """The question in which layout a convolution is fastest."""

    family = "oneDNN convolution"
    waits = False  # nothing keeps what a plan has guessed meanwhile
    warns = False  # the guess runs

    def __init__(self, call: Call, ways: list[_LayoutChoice]) -> None:
        self.call, self.ways = call, ways
        types = [str(t) for t in (*call.inputs, *call.outputs)]
        asked = {"op": str(call.op), "types": types}
        found = library.facts()
        version, isa = found.get("onednn"), found.get("isa")
        self.key = {
            "cpu": jit.processor_digest(), "onednn": version, "isa": isa,
            "threads": thread_pools.set_threads(), "among": [w.name for w in ways], **asked,
        }  # fmt: skip
        self.fault = {"library": "oneDNN", "version": version, "arch": isa, **asked}

    def identity(self, candidate: _LayoutChoice) -> Any:
        """The layout's name."""
        return candidate.name

    def measured(self) -> tuple[list[Attempt[_LayoutChoice]], str]:
        """The attempts; the guess is first, since results are compared with its."""
        return self.attempts(_LayoutBench(self.call, self.ways), self.ways), ""

    def record(self, best: Attempt[_LayoutChoice]) -> dict[str, Any]:
        """The layout's name."""
        return {"name": best.candidate.name, "ms": best.ms}

    def revived(self, record: dict[str, Any]) -> Attempt[_LayoutChoice] | None:
        """The layout, if oneDNN still has a primitive for it."""
        named = (w for w in self.ways if w.name == record.get("name") and not self.is_blocked(w))
        return next((Attempt(w, float(record["ms"])) for w in named), None)


class _LayoutBench(Bench[_LayoutChoice]):
    """Measures candidates on random operands; times include reorders of all operands."""

    def __init__(self, call: Call, ways: list[_LayoutChoice]) -> None:
        self.error_limit = 3e-2 if call.inputs[0].dtype == "bfloat16" else 1e-3
        rng = np.random.default_rng(0)
        self.arrays = [_drawn(rng, t) for t in call.inputs]
        self.outputs = [np.zeros(t.shape, t.numpy) for t in call.outputs]
        self.scratch = np.empty(max(w.workspace_bytes for w in ways) + 64, np.uint8)
        self.launchers = {w.name: w.planned.launcher() for w in ways}

    def results(self, candidate: _LayoutChoice) -> list[Any]:
        """The outputs of a run, which also warms up the caches."""
        self._ms(candidate)
        return [y.copy() for y in self.outputs]

    def time(self, candidate: _LayoutChoice, good_ms: float) -> float:
        """The shortest time of three runs."""
        return min(self._ms(candidate) for _ in range(_TIMED_RUNS))

    def race(self, candidates: Sequence[_LayoutChoice]) -> list[float]:
        """The shortest times of three rounds, in each of which all candidates run in turn."""
        rounds = [[self._ms(c) for c in candidates] for _ in range(_TIMED_RUNS)]
        return [min(own) for own in zip(*rounds, strict=True)]

    def _ms(self, way: _LayoutChoice) -> float:
        for y in self.outputs:
            y[...] = 0  # an epilogue may add to it
        start = time.perf_counter()
        self.launchers[way.name](self.arrays, self.outputs, self.scratch)
        return (time.perf_counter() - start) * 1e3


_TIMED_RUNS = 3


def _drawn(rng: np.random.Generator, t: Any) -> Any:
    if not t.is_float:  # sizes, whose values are not read
        return np.full([d or 0 for d in t.shape], 1, t.numpy)
    return rng.uniform(-1, 1, t.shape).astype(t.numpy)


KERNELS: tuple[Row, ...] = (
    ((OneDnnConv,), (ConvKernel(1),)),
    ((OneDnnConvGradI,), (ConvKernel(0),)),
    ((OneDnnConvGradW,), (ConvKernel(),)),
)
