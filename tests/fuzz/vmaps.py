"""vmap of random expressions against NumPy, entry by entry; its gradients against entries alone.

A program is grown for one entry. The others have its inputs with their elements moved, so that
indices stay in range. Some inputs are shared by all entries, others have the new dimension
anywhere. What some entry cannot compute, or rounding decides, is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import symdnn
from symdnn.errors import DataDependentShape, NonDifferentiable, OptionError, SymdnnError
from symdnn.graph.type import TensorType
from tests.fuzz.areas import Area, Context, Failure, error_text
from tests.fuzz.catalogue import grow
from tests.fuzz.expressions import alike, distance, draw_mode
from tests.fuzz.gradients import SmoothGrowth, smooth_values
from tests.fuzz.growth import Growth, RawError, Tally, Term, replay
from tests.fuzz.noise import Unusable
from tests.fuzz.program import Input, Program, Step, pick, results_of, script, variables
from tests.fuzz.reduce import reduced
from tests.fuzz.values import SIZES

TALLY = Tally()
#: Draws and effects: an entry alone draws other numbers.
RANDOM = ("random", "dropout", "shuffle", "print")
#: Functions of a sorted table, or of boxes with corners in order, which moved elements are not.
OF_TABLES = ("digitize", "searchsorted", "search_sorted", "interp", "histogram", "boxes", "nms")


@dataclass(frozen=True)
class Batch:
    """How many entries there are, and where each input has their dimension (None: shared)."""

    lanes: int
    axes: tuple[int | None, ...]
    seed: int
    nested: bool = False

    def programs(self, program: Program) -> list[Program]:
        """The program of each entry."""
        return [self._of_lane(program, k) for k in range(self.lanes)]

    def _of_lane(self, program: Program, lane: int) -> Program:
        rng = np.random.default_rng([self.seed, lane])
        axes, items = iter(self.axes), list[Any](program.items)
        for k, item in enumerate(items):
            if isinstance(item, Input) and next(axes) is not None and lane:
                value = item.value
                if of_matrices(program):  # they stay definite, and as well conditioned
                    moved = value * (1 + lane / 8) if value.dtype.kind in "fc" else value
                else:
                    moved = rng.permutation(value.reshape(-1)).reshape(value.shape)
                items[k] = replace(item, value=moved.astype(value.dtype))
        return replace(program, items=tuple(items))

    def arrays(self, programs: Sequence[Program]) -> list[np.ndarray]:
        """The arguments: stacks of the entries' inputs, or what they share."""
        first = programs[0].arrays()
        lanes = [p.arrays() for p in programs]
        return [
            a if axis is None else np.stack([lane[k] for lane in lanes], axis)
            for k, (a, axis) in enumerate(zip(first, self.axes))
        ]

    def stacks(self, program: Program) -> list[Any]:
        """Variables for the arguments."""
        found = []
        for k, (item, axis) in enumerate(zip(program.inputs, self.axes)):
            shape = list(item.static)
            if axis is not None:
                shape.insert(axis, None)
            found.append(TensorType(item.value.dtype.name, shape)(f"x{k}"))
        return found


def of_matrices(program: Program) -> bool:
    """Whether a step is of linear algebra."""
    paths = [i.path for i in program.items if isinstance(i, Step)]
    return any(m in p for p in paths for m in ("linalg", "nlinalg", "slinalg", "_pos", "det"))


def function_of_program(program: Program) -> Any:
    """The program as a function of its inputs."""

    def f(*inputs: Any) -> list[Any]:
        results = results_of(program.items, inputs)
        return [pick(results, r) for r in program.outputs]

    return f


def check(ctx: Context) -> list[Failure]:
    """A program over a new dimension: its values, and now and then its gradients."""
    rng = ctx.rng
    mode, _ = draw_mode(rng, ctx.device)
    smooth = rng.random() < 0.3
    try:
        g: Growth = (
            SmoothGrowth(rng, (1, 1, 2, 3), ("float64",) * 3 + ("int64",), TALLY, smooth_values)
            if smooth
            else Growth(rng, SIZES, tally=TALLY)
        )
        grow(g, int(rng.integers(1, 6)))
    except RawError:
        return []  # the area expressions reports it
    ends = [t for t in g.sinks() if t.base.size]
    if not ends:
        return []
    program = g.program([ends[-1]]).pruned()
    if any(r in i.path for i in program.items if isinstance(i, Step) for r in RANDOM + OF_TABLES):
        return []
    batch = _batch(program, rng)
    narrow = any(i.value.dtype.itemsize < 8 for i in program.inputs)
    if batch is None or (narrow and of_matrices(program)):
        return []
    said = wrong(program, batch, mode, rng, smooth, ctx)
    if said and not wrong(program, batch, mode, rng, smooth, runs=40):
        said = ""  # it was rounding
    return [_report(ctx, program, batch, said, mode, smooth)] if said else []


def _batch(program: Program, rng: np.random.Generator) -> Batch | None:
    axes = [
        int(rng.integers(i.value.ndim + 1)) if rng.random() < 0.7 else None for i in program.inputs
    ]
    if not axes:
        return None
    if all(a is None for a in axes):
        axes[0] = 0
    lanes = int(rng.choice([1, 2, 3, 3, 4]))
    return Batch(lanes, tuple(axes), int(rng.integers(1 << 30)), bool(rng.random() < 0.2))


def wrong(
    program: Program, batch: Batch, mode: Any, rng: Any, smooth: bool, ctx: Context | None = None,
    runs: int = 8,
) -> str:  # fmt: skip
    """What is wrong with vmap of the program, or ``""``."""
    programs = batch.programs(program)
    try:
        terms = [_term(p, rng, runs) for p in programs]
    except (Unusable, SymdnnError, ArithmeticError, ValueError, IndexError, TypeError):
        return ""  # an entry that cannot be computed, or that rounding decides
    if len({t.shape for t in terms}) > 1:
        return ""
    arrays, stacks = batch.arrays(programs), batch.stacks(program)
    try:
        found = _vectorized(program, batch, stacks)
        if smooth:
            found += _gradients(program, batch, stacks)
        f = symdnn.function(stacks, found, mode=mode, on_unused_input="ignore")
        results = [np.asarray(r) for r in f(*arrays)]
    except (DataDependentShape, OptionError) as error:
        if ctx is not None:
            ctx.count("refused")
        return "" if "vectorised" in str(error) or "vmap" in str(error) else error_text(error)
    except (NonDifferentiable, NotImplementedError):
        return ""  # the area gradients reports what should have one
    except Exception as error:
        return f"raises {error_text(error)}"
    if ctx is not None:
        ctx.count("programs")
    for k, term in enumerate(terms):
        got = results[0][k]
        if got.shape != term.shape or got.dtype != term.v.type.numpy:
            return f"entry {k}: {got.dtype} {got.shape}, alone {term.v.type.dtype} {term.shape}"
        far = distance(term, got)
        if far:
            return f"entry {k}: {far}"
    return _wrong_gradients(programs, batch, results[1:], mode, ctx) if smooth else ""


def _term(program: Program, rng: Any, runs: int) -> Term:
    _, symbols = variables(program)
    (ref,) = program.outputs
    return Term(ref, pick(symbols, ref), replay(program, symbols, rng, runs)[(ref.at, ref.item)])


def _vectorized(program: Program, batch: Batch, stacks: list[Any]) -> list[Any]:
    f = symdnn.vmap(function_of_program(program), in_axes=batch.axes)
    if batch.nested:  # over a second dimension of size 1, in front
        wide = [v if a is None else v.dimshuffle("x", *range(v.ndim))
                for v, a in zip(stacks, batch.axes)]  # fmt: skip
        outer = tuple(None if a is None else 0 for a in batch.axes)
        return [o[0] for o in symdnn.vmap(f, in_axes=outer)(*wide)]
    return list(f(*stacks))


def _cost(f: Any, inputs: Sequence[Any]) -> list[Any]:
    (out,) = f(*inputs)
    wrt = [v for v in inputs if v.type.dtype == "float64"]
    if out.type.dtype != "float64" or not wrt:
        return []
    return list(symdnn.grad((out * 1.25).sum(), wrt, disconnected_inputs="ignore"))


def _gradients(program: Program, batch: Batch, stacks: list[Any]) -> list[Any]:
    f = function_of_program(program)
    return list(symdnn.vmap(lambda *v: _cost(f, v), in_axes=batch.axes)(*stacks))


def _wrong_gradients(
    programs: Sequence[Program], batch: Batch, results: Sequence[Any], mode: Any, ctx: Any
) -> str:
    if not results:
        return ""
    inputs, _ = variables(programs[0])
    grads = _cost(function_of_program(programs[0]), inputs)
    alone = symdnn.function(inputs, grads, mode=mode, on_unused_input="ignore")
    if ctx is not None:
        ctx.count("gradients")
    for k, p in enumerate(programs):
        for got, want in zip([r[k] for r in results], alone(*p.arrays()), strict=True):
            size = float(np.max(np.abs(want), initial=1.0, where=np.isfinite(want)))
            with np.errstate(all="ignore"):
                off = np.abs(got - want) > 1e-7 * size
            if got.shape != want.shape or (off & np.isfinite(want)).any():
                return f"gradient of entry {k}: {got.tolist()}, alone {want.tolist()}"[:400]
    return ""


def _report(
    ctx: Context, program: Program, batch: Batch, what: str, mode: Any, smooth: bool
) -> Failure:
    def still(p: Program) -> str:
        if len(p.inputs) != len(batch.axes):
            return ""
        return alike(wrong(p, batch, mode, np.random.default_rng(1), smooth, runs=40), what)

    small = reduced(program, still, budget=60)
    tail = [
        f"# a batch of {batch.lanes}, in_axes {batch.axes}, seed {batch.seed}: tests/fuzz/vmaps.py",
        "from symdnn import vectorize_graph",
    ]
    return ctx.fail(still(small) or what, script(small, tail))


AREA = Area("vmaps", "programs", check, in_tests=60, on_device=True)
