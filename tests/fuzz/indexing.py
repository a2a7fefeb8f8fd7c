"""Reading, setting and incrementing by indices of every kind, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from tests.fuzz.areas import Area, Context, Failure
from tests.fuzz.catalogue import drawn
from tests.fuzz.expressions import _lay_out, draw_mode, report, run
from tests.fuzz.growth import Growth, RawError, Tally, Term
from tests.fuzz.noise import Unusable
from tests.fuzz.program import Input, Program, Ref, Step, pick, script, variables, walk

GROUP = 8
SIZES = (0, 1, 1, 2, 3, 3, 5, 7)
NAMED = ("take", "take_along_axis", "put_along_axis", "choose", "compress", "fill_diagonal", "diff",
         "diagonal", "roll", "split", "flip", "repeat", "nonzero", "nonzero_values")  # fmt: skip
TALLY = Tally()


def setting(x: Any, index: Any, y: Any) -> Any:
    """``x`` with ``y`` in place of ``x[index]``."""
    return T.set_subtensor(x[index], y)


def adding(x: Any, index: Any, y: Any) -> Any:
    """``x`` with ``y`` added to ``x[index]``."""
    return T.inc_subtensor(x[index], y)


def slope(x: Any, index: Any, y: Any) -> Any:
    """The gradient of ``(x[index] * y).sum()``."""
    return T.grad((x[index] * y).sum(), x)


# -- indices --------------------------------------------------------------------------------------


def draw_index(g: Growth, shape: Sequence[int]) -> Any:
    """A NumPy index for this shape, wrong now and then; integers and arrays may be symbolic."""
    entries: list[Any] = []
    axis = 0
    common = [g.of([1, 1, 2, 3]) for _ in range(g.integer(0, 2))]
    dots = False
    while axis < len(shape) and (axis == 0 or g.chance(0.8)):
        if not dots and g.chance(0.18):
            entries.append(Ellipsis)
            dots = True
            axis += g.integer(0, len(shape) - axis)
            continue
        if g.chance(0.1):
            entries.append(None)
            continue
        entry, used = _entry(g, shape[axis:], common)
        entries.append(entry)
        axis += used
    if not dots and g.chance(0.1):
        entries.insert(g.integer(0, len(entries)), Ellipsis)
    if g.chance(0.08):
        entries.insert(g.integer(0, len(entries)), None)
    _check_masks(g, entries, shape)
    return entries[0] if len(entries) == 1 and g.chance(0.5) else tuple(entries)


def _check_masks(g: Growth, entries: Sequence[Any], shape: Sequence[int]) -> None:
    """A mask with one True beside arrays broadcasts in NumPy; here only a static 1 does.

    A mask of size 0 fits all sizes in NumPy; here only 0.
    """
    values = [pick(g.numbers.results[0], e) if isinstance(e, Ref) else e for e in entries]
    arrays = [np.asarray(v) for v in values if isinstance(v, np.ndarray | list)]
    if len(arrays) > 1 and any(a.dtype.kind == "b" and a.sum() == 1 for a in arrays):
        raise Unusable("a mask of one element beside another array")
    axis = 0
    for v in values:
        count = len(shape) - sum(map(_taken, values)) if v is Ellipsis else _taken(v)
        empty = isinstance(v, np.ndarray) and v.dtype.kind == "b" and v.size == 0
        if empty and v.shape != tuple(shape[axis : axis + count]):
            raise Unusable("an empty mask of other sizes")
        axis += count


def _taken(entry: Any) -> int:
    """How many dimensions an entry of an index stands for."""
    if entry is None or entry is Ellipsis:
        return 0
    mask = isinstance(entry, np.ndarray) and entry.dtype.kind == "b"
    return entry.ndim if mask else 1


def _entry(g: Growth, shape: Sequence[int], common: Sequence[int]) -> tuple[Any, int]:
    n, which = shape[0], g.rng.random()
    if which < 0.4:
        bounds = [_bound(g, n) if g.chance(0.5) else None for _ in range(2)]
        return slice(*bounds, g.of([None, None, 1, 2, 3, -1, -2])), 1
    if which < 0.6:
        low, high = (-n, n - 1) if n and not g.chance(0.02) else (-n - 1, n)
        return _symbolic(g, g.integer(low, high)), 1
    if which < 0.72:
        depth = g.integer(1, min(2, len(shape)))
        mask = g.rng.random(shape[:depth]) < 0.5
        return (mask if g.chance(0.3) else g.fresh(mask.shape, "bool", mask).ref), depth
    if n == 0:
        return np.zeros(0, "int64"), 1
    dims = [1 if g.chance(0.2) else d for d in common][g.integer(0, len(common)) and 0 :]
    low = -n if g.chance(0.7) else 0
    values = g.rng.integers(low, n, dims)
    if g.chance(0.3):
        return (values.tolist() if values.ndim else int(values)), 1
    dtype = g.of(["int64", "int64", "int32", "int8"] + (["uint8", "uint64"] if low == 0 else []))
    static = g.fresh(values.shape, dtype, values.astype(dtype), known=0.3)
    return _ones_known(g, static), 1


def _ones_known(g: Growth, t: Term) -> Ref:
    """Sizes of 1 of an index array are static: others do not broadcast."""
    from dataclasses import replace

    item = g.items[t.ref.at]
    assert isinstance(item, Input)
    item = replace(item, static=tuple(1 if n == 1 else s for n, s in zip(t.shape, item.static)))
    v = item.type(f"v{t.ref.at}")
    g.items[t.ref.at], g.symbols[t.ref.at] = item, v
    g.terms[g.terms.index(t)] = replace(t, v=v)
    return t.ref


def _bound(g: Growth, n: int) -> Any:
    return _symbolic(g, g.integer(-n - 3, n + 3))


def _symbolic(g: Growth, k: int) -> Any:
    if g.chance(0.3):
        return g.fresh((), g.of(["int64", "int32", "int8"]), np.array(k)).ref
    return k


# -- programs -------------------------------------------------------------------------------------


def draw_indexing(g: Growth) -> Step:
    """A read, a write or an increment at a random index of a random tensor."""
    if g.chance(0.15):
        table = drawn()
        name = g.of(NAMED)
        return table[f"T.{name}"](g)
    t = g.term((1, 2, 3, 4))
    index = draw_index(g, t.shape)
    which = g.rng.random()
    if which < 0.5:
        return Step("operator.getitem", (t.ref, index))
    if t.kind == "b":
        return Step("indexing.setting", (t.ref, index, _value(g, t, index)))
    if which < 0.7:
        return Step("indexing.setting", (t.ref, index, _value(g, t, index)))
    if which < 0.88 or t.kind != "f":
        return Step("indexing.adding", (t.ref, index, _value(g, t, index)))
    return Step("indexing.slope", (t.ref, index, _value(g, t, index, whole=True)))


def _value(g: Growth, t: Term, index: Any, whole: bool = False) -> Any:
    """What is written: of the part's shape, or with sizes of 1, or fewer dimensions."""
    chosen = walk(index, lambda r: pick(g.numbers.results[0], r))
    try:
        shape = np.shape(t.base[chosen])
    except (IndexError, ValueError) as error:
        raise Unusable(str(error)) from error
    if not whole and g.chance(0.3):
        shape = tuple(1 if g.chance(0.4) else n for n in shape)[g.integer(0, len(shape)) :]
    return _ones_known(g, g.fresh(shape, t.dtype))


def check(ctx: Context) -> list[Failure]:
    """Some programs in one function, and some indices that are out of range."""
    rng = ctx.rng
    grown, failures = [], []
    for _ in range(GROUP):
        g = Growth(rng, SIZES, tally=TALLY)
        for _ in range(int(rng.integers(1, 4))):
            failures += _try(ctx, g)
        if g.sinks():
            _lay_out(g)
            grown.append(g)
    if not grown:
        return failures
    ctx.count("indexings", sum(len(g.items) - len(_inputs(g)) for g in grown))
    mode, _ = draw_mode(rng, ctx.device)
    chosen = [g.sinks()[-4:] for g in grown]
    for g, outs in zip(grown, run(grown, chosen, mode, ctx)):
        for what, term in outs:
            failures.append(report(ctx, g.program([term]), what, mode, {}))
    return failures


def _inputs(g: Growth) -> list[Input]:
    return [i for i in g.items if isinstance(i, Input)]


def _try(ctx: Context, g: Growth) -> list[Failure]:
    step = None
    try:
        step = draw_indexing(g)
        g.take(step)
    except RawError as error:
        assert step is not None
        return [_raised(ctx, g, step, f"building raises {error}")]
    except Unusable as unusable:
        if step is not None and "IndexError" in str(unusable):
            return _refusal(ctx, g, step)
    return []


def _raised(ctx: Context, g: Growth, step: Step, message: str) -> Failure:
    program = Program((*g.items, step), (Ref(len(g.items)),)).pruned()
    return ctx.fail(message, script(program, ["print(symdnn.function(inputs, outputs)(*arrays))"]))


def _refusal(ctx: Context, g: Growth, step: Step) -> list[Failure]:
    """NumPy raised an IndexError: so does symdnn, when building or when running."""
    program = Program((*g.items, step), (Ref(len(g.items)),)).pruned()
    try:
        inputs, symbols = variables(program)
        outs = symbols[-1]
        f = symdnn.function(inputs, outs, on_unused_input="ignore")
        f(*program.arrays())
    except SymdnnError as error:
        if isinstance(error, IndexError | ValueError | TypeError):
            return []
        return [_raised(ctx, g, step, f"raises {type(error).__name__}, NumPy an IndexError")]
    except Exception as error:
        return [_raised(ctx, g, step, f"raises {type(error).__name__}: {error}")]
    return [_raised(ctx, g, step, "gives a result, NumPy raises an IndexError")]


AREA = Area("indexing", "indexings", check, in_tests=300, on_device=True)
