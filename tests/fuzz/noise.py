"""NumPy's values of a program's steps, and their rounding noise.

The noise of a value is how far it moves when what is rounded is rounded otherwise: beside the exact
run there are some in which operands and results are moved by up to half a unit of their dtype. In
the first of them nothing is moved; results are rounded as the dtype does it, and 0 where rounding
may have made them 0: so are ties seen, and poles. A step is taken only where its value is finite
in all runs and, if it is discrete, no rounding decides it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.tensor import elementwise, products, reductions
from tests.fuzz import oracle as O
from tests.fuzz.oracle_conv import terms
from tests.fuzz.program import Input, Ref, Step, cases, function_of, pick
from tests.fuzz.values import kind, largest, least, unit, wide

RUNS = 4
MOST = 30_000  # elements of one value
_MATH = [
    n
    for n, f in vars(T).items()
    if getattr(f, "__module__", "") == "symdnn.ops.numpy_names.numpy_math"
]
_ROUNDED = [
    "acos", "acosh", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "average",
    "baddbmm", "bmm", "clamp", "clamp_max", "clamp_min", "corrcoef", "cov", "cumulative_prod",
    "cumulative_sum", "degrees", "diff", "dist", "divide", "ediff1d", "frac", "gcd", "gradient",
    "histogram2d", "lcm", "matvec", "median", "mm", "mv", "nancumprod", "nancumsum", "nanmean",
    "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "percentile", "poly",
    "polyadd", "polyder", "polyfit", "polyint", "polymul", "polysub", "polyval", "quantile",
    "cosine_similarity", "cumulative_trapezoid", "logdet", "matrix_exp", "mvlgamma",
    "pairwise_distance", "pdist", "std_mean", "trace", "unwrap", "vander", "var_mean", "vecdot",
    "vecmat", "xlogy", "istft", "stft",
]  # fmt: skip
#: Rounded, but of operands that stay ints.
_OTHERS = ["bartlett", "blackman", "geomspace", "hamming", "hanning", "histogram_bin_edges",
           "index_add", "kaiser", "linspace", "logspace", "scatter", "scatter_add",
           "scatter_reduce", "index_reduce", "segment_prod", "segment_sum", "bartlett_window",
           "blackman_window", "hamming_window", "hann_window", "kaiser_window"]  # fmt: skip
ARITHMETIC = {*elementwise.__all__, *reductions.__all__, *products.__all__, *_MATH, *_ROUNDED}


class Unusable(Exception):
    """A step that cannot be judged: its value is not finite, too large, or decided by rounding."""


def is_arithmetic(path: str) -> bool:
    """Whether ints become floats where the result is one."""
    if path.startswith("operator."):
        return path != "operator.getitem"
    return path.split(".")[-1] in ARITHMETIC


def is_rounded(path: str) -> bool:
    """Whether rounding touches the result."""
    name = path.split(".")[-1]
    if path.startswith("operator."):
        return name not in ("getitem", "neg", "lt", "gt", "le", "ge", "eq", "and_", "or_", "xor")
    if path.startswith(("case.", "T.nnet.", "T.signal.")) or "linalg." in path:
        return name not in O.EXACT
    if path.startswith("indexing."):
        return name != "setting"
    return (is_arithmetic(path) or name in _OTHERS) and name not in O.EXACT


def _name(step: Step) -> str:
    return step.path.split(".")[-1]


def _moved(rng: np.random.Generator, value: Any, u: float, smallest: float = 0.0) -> Any:
    a = np.asarray(value)
    if a.dtype.kind not in "fc" or not u:
        return value
    e = rng.uniform(0.51, 1, a.shape) * rng.choice([-1.0, 1.0], a.shape)
    size = np.abs(a)  # float64 has nothing between two of its numbers: less than half is nothing
    return a + e * np.maximum(np.maximum(u * size, smallest), np.spacing(size))


def _running(rng: np.random.Generator, step: Step, found: Any, u: float) -> Any:
    """A running sum or product, each step of which was rounded."""
    e = rng.uniform(-u, u, np.shape(found))
    axis = step.kwargs.get("axis")
    if "prod" in _name(step):
        return found * (1 + np.cumsum(e, axis))
    return found + np.cumsum(e * np.abs(found), axis)


def _spread(rng: np.random.Generator, step: Step, found: Any, u: float) -> Any:
    """A variance or its root, of values that may be the same but for their mean's rounding."""
    off = 4 * u * float(np.abs(step.args[0]).max(initial=0))
    power = 1 if _name(step) in ("std", "nanstd") else 2
    return found + rng.uniform(0, 1, np.shape(found)) * off**power


class Numbers:
    """The exact run and the perturbed ones, side by side."""

    def __init__(self, rng: np.random.Generator, runs: int = RUNS) -> None:
        self.rng, self.runs = rng, runs
        self.results: list[list[Any]] = [[] for _ in range(runs + 1)]

    def add_input(self, item: Input) -> list[Any]:
        value = wide(item.value)
        for r in self.results:
            r.append(value)
        return [value]

    def step(self, step: Step, outs: Sequence[Variable], single: bool, known: Any) -> None:
        """Evaluate ``step`` in all runs; raises :class:`Unusable`."""

        def by_reference(*args: Any, **kwargs: Any) -> Any:
            return _reference(step, args, known)

        fn, _ = O.oracle(step.path, by_reference)
        new = []
        for k, results in enumerate(self.results):
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                new.append(self._run(step, fn, results, outs, known, k))
        self._check(new, outs)
        if self.runs:
            _round(new, outs)
        for results, values in zip(self.results, new):
            results.append(values[0] if single else values)

    def _run(
        self, step: Step, fn: Any, results: list[Any], outs: Sequence[Variable], known: Any,
        k: int,
    ) -> list[Any]:  # fmt: skip
        out, perturb = outs[0].type.dtype, k > 1
        u = self._unit(step, outs, known) if perturb and is_rounded(step.path) else 0.0
        picks = _name(step) in ("argmax", "argmin")  # their result's dtype is not their operand's
        to = _common(out) if is_arithmetic(step.path) and not picks else None

        if u:  # each of n additions rounds what has been added up: sqrt(n) times a term's rounding
            u *= terms(_name(step), [pick(results, r) for r in step.refs()]) ** 0.5

        def given(r: Ref) -> Any:
            value = pick(results, r)
            if to is not None and np.asarray(value).dtype.kind in "biu":
                value = np.asarray(value).astype(to)
            return _moved(self.rng, value, u)

        s = step.mapped(given)
        _check_broadcast([a for a in (*s.args, *s.kwargs.values()) if isinstance(a, np.ndarray)])
        try:
            found = fn(*s.args, **s.kwargs)
        except Exception as error:
            raise Unusable(f"{type(error).__name__}: {error}") from error
        if u and _name(step) in O.RUNNING and not step.path.startswith("case."):
            found = _running(self.rng, step, found, u)
        if u and _name(step) in O.SPREADS:
            found = _spread(self.rng, s, found, u)
        values = list(found) if isinstance(found, list | tuple) else [found]
        if len(values) != len(outs):
            raise Unusable("another number of results")
        _check_size(values)
        inside = u * (1.0 if step.path.startswith("case.") else O.INSIDE.get(_name(step), 0.0))
        if _name(step) in O.OF_NORM:
            largest_one = max((np.abs(v).max(initial=0.0) for v in values), default=0.0)
            inside = max(inside, u * O.OF_NORM[_name(step)] * float(largest_one))
        if _name(step) in O.FLUSHED:
            inside = max(inside, 2.0**-126)
        return [self._conform(v, o.type, perturb, u, inside) for v, o in zip(values, outs)]

    def _unit(self, step: Step, outs: Sequence[Variable], known: Any) -> float:
        """The rounding of what is inside of a step: of one op, or of several."""
        out = unit(outs[0].type.dtype)
        if step.path.startswith("case."):
            table = 1e-4 if out == unit("float32") else 0.0  # as tests/test_op_table.py allows
            return max(out, table, cases()[step.path[5:]].rtol)
        inner = [unit(known[(r.at, r.item)].type.dtype) for r in step.refs()]
        composed = is_composed(outs, [known[(r.at, r.item)] for r in step.refs()])
        return max([out, *inner]) if composed and out else min(out, unit("float32"))

    def _conform(
        self, value: Any, t: TensorType, perturb: bool, u: float, inside: float
    ) -> Any:  # fmt: skip
        a = np.asarray(value)
        if t.dtype == "bool":
            return a != 0
        if kind(t.dtype) in "biu":
            if a.dtype.kind in "fc":
                _check_range(a, t.dtype)
                a = np.trunc(a.real)
            return a.astype(t.dtype)
        if a.dtype.kind == "c" and kind(t.dtype) == "f":
            raise Unusable("a complex result for a real type")
        a = a.astype("c16" if kind(t.dtype) == "c" else "f8")
        fits = not u and np.array_equal(a, wide(a.astype(t.numpy)))
        u = max(u, unit(t.dtype))
        return a if fits or not perturb else _moved(self.rng, a, u, max(least(t.dtype), inside))

    def _check(self, runs: list[list[Any]], outs: Sequence[Variable]) -> None:
        for k, o in enumerate(outs):
            values = [r[k] for r in runs]
            if any(v.shape != values[0].shape for v in values) or values[0].size > MOST:
                raise Unusable("too large, or of a shape that rounding decides")
            if kind(o.type.dtype) in "biu":
                if not all(np.array_equal(v, values[0]) for v in values[1:]):
                    raise Unusable("rounding decides a discrete value")
            elif not all(np.isfinite(v).all() for v in values):
                raise Unusable("not finite")
            elif values[0].size and np.abs(values[0]).max() > largest(o.type.dtype) ** 0.5:
                raise Unusable("near overflow")
            elif ((values[0] != 0) & (np.abs(values[0]) < 8 * least(o.type.dtype))).any():
                raise Unusable("it would be 0")


def _check_broadcast(arrays: Sequence[Any]) -> None:
    """Refuse operands that together are far larger than each of them, before that is computed."""
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return
    if np.prod(shape, dtype=float) > 1000 * MOST:
        raise Unusable("too large")


def _check_size(values: Sequence[Any]) -> None:
    if any(np.size(v) > MOST for v in values):
        raise Unusable("too large")


def _round(runs: list[list[Any]], outs: Sequence[Variable]) -> None:
    """The first perturbed run as the dtype has it, and 0 where the runs disagree about the sign."""
    for k, o in enumerate(outs):
        if kind(o.type.dtype) in "biu":
            continue
        base = runs[0][k]
        noise = functools.reduce(np.maximum, (np.abs(r[k] - base) for r in runs[1:]))
        with np.errstate(all="ignore"):
            rounded = wide(np.asarray(runs[1][k]).astype(o.type.numpy))
        runs[1][k] = np.where(noise >= np.abs(base), 0, rounded)


#: Ops whose floats are those of their operands.
_MOVING = {"DimShuffle", "Reshape", "Subtensor", "Join", "Split", "Alloc", "Take", "Switch", "Neg",
           "Abs", "Maximum", "Minimum", "Clip", "Flip", "SpecifyShape", "Sort"}  # fmt: skip


def is_composed(outs: Sequence[Variable], operands: Sequence[Variable]) -> bool:
    """Whether a step builds more than one op that rounds: each of them rounds to its dtype."""
    seen, rounding = set(operands), 0
    stack = list(outs)
    while stack and rounding < 2:
        v = stack.pop()
        if v in seen or v.owner is None:
            continue
        seen.update(v.owner.outputs)
        stack += v.owner.inputs
        tensor = isinstance(v.type, TensorType) and kind(v.type.dtype) in "fc"
        rounding += tensor and type(v.owner.op).__name__ not in _MOVING
    return rounding > 1


def _check_range(a: Any, dtype: str) -> None:
    info = np.iinfo(dtype)
    if a.size and not (np.isfinite(a).all() and info.min <= a.real.min() <= a.real.max()
                       and a.real.max() < float(info.max)):  # fmt: skip
        raise Unusable("out of the range of the integer type")


def _common(out: str) -> str | None:
    return "f8" if kind(out) in "fc" else None if out == "bool" else out


def _reference(step: Step, args: tuple[Any, ...], known: Any) -> Any:
    """By the ops' references, on operands of the program's own dtypes."""
    values: dict[Variable, Any] = {}
    fresh = iter(zip(step.refs(), _arrays_of(step, args)))

    def variable(r: Ref) -> Any:
        _, a = next(fresh)
        t: Any = known[(r.at, r.item)].type
        v = TensorType(t.dtype, t.shape)()
        values[v] = np.asarray(a).astype(t.numpy)
        return v

    s = step.mapped(variable)
    built = function_of(step.path)(*s.args, **s.kwargs)
    outs = list(built) if isinstance(built, list | tuple) else [built]
    try:
        return [wide(x) for x in evaluate(outs, values)]
    except SymdnnError as error:
        raise Unusable(str(error)) from error


def _arrays_of(step: Step, args: tuple[Any, ...]) -> list[Any]:
    """The operands that stand where the step has references, in their order."""
    found: list[Any] = []

    def both(a: Any, b: Any) -> None:
        if isinstance(a, Ref):
            found.append(b)
        elif isinstance(a, list | tuple):
            for x, y in zip(a, b):
                both(x, y)

    both(step.args, args)
    return found
