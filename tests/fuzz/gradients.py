"""Gradients, forward mode and second derivatives against differences of NumPy's values.

The difference quotient is taken along one random direction, of NumPy's evaluation in float64, at
three steps; extrapolation says how far it can be trusted. Where it can not (a kink, a pole) the
program is undecided and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.errors import NonDifferentiable, SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import graph_inputs
from symdnn.graph.variable import Variable
from tests.fuzz import peers
from tests.fuzz.areas import Area, Context, Failure, error_text
from tests.fuzz.catalogue import grow
from tests.fuzz.expressions import alike, draw_mode, mode_text
from tests.fuzz.growth import Growth, RawError, Tally, Term, replay
from tests.fuzz.noise import Numbers, Unusable, is_composed
from tests.fuzz.program import Input, Program, Ref, Step, cases, pick, script, variables
from tests.fuzz.reduce import reduced
from tests.fuzz.values import draw_values, kind

GROUP = 4
SIZES = (1, 1, 2, 3, 5, 7)
#: How often values are equal to others, or 0.
TIED = 0.12
STEPS = (2.0**-10, 2.0**-11, 2.0**-12)
TALLY = Tally()


def smooth_values(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Values without ties or zeros: kinks lie elsewhere.

    Now and then they are ties and zeros, for rewritten forms that have a kink which the function
    has not; where it has one, differences say so.
    """
    if dtype != "float64":
        return draw_values(rng, shape, dtype)
    if rng.random() < TIED:
        return np.asarray(rng.choice([0.0, 0.5, -0.5, 1.0], shape))
    sign = rng.choice([-1.0, 1.0], shape) if rng.random() < 0.5 else 1.0
    return np.asarray(sign * rng.uniform(0.15, 1.6, shape))


#: Functions without a derivative where they or an operand are 0, and at 1.
AT_ZERO = {"pow", "power", "rel_entr", "sqrt", "norm", "std", "nanstd", "angle", "arctan2", "rsqrt",
           "hypot", "chi2sf", "gammainc", "gammaincc", "gammal", "gammau", "betainc", "betaincc",
           "betaincinv", "betainccinv", "gammaincinv", "gammainccinv", "zeta"}  # fmt: skip
#: Functions without one where the last operand is 0.
OF_LAST = {"xlogx", "xlogy0"}
AT_ONE = {
    "arcsin",
    "arccos",
    "arccosh",
    "arctanh",
    "erfinv",
    "erfcinv",
    "betainc",
    "betaincc",
    "logit",
    "ndtri",
    "zeta",
}
DTYPES = ("float64", "float64", "float64", "complex128", "int64", "int8", "bool")
#: Inputs of which nothing that rounds is computed but beside a float64.
BESIDE = ("uint8", "int16", "float32", "bfloat16")


#: Functions that take extremes of an operand: which, and of what.
EXTREMES = {
    **dict.fromkeys(("max", "amax", "nanmax", "max_and_argmax"), (np.max,)),
    **dict.fromkeys(("min", "amin", "nanmin"), (np.min,)),
    "ptp": (np.max, np.min),
}


def tied(step: Step, x: Any) -> bool:
    """Whether several elements are the extreme that a step takes of ``x``.

    Each of them takes the whole gradient, as in Theano: no derivative, and where all come of the
    same variable differences see no kink.
    """
    name, rest = step.path.split(".")[-1], list(step.args[1:])
    if name == "norm":
        order = rest.pop(0)
        x, extremes = np.abs(x), {np.inf: (np.max,), -np.inf: (np.min,)}.get(order, ())
    else:
        extremes = EXTREMES.get(name, ())
    axis = step.kwargs.get("axis", rest[0] if rest else None)
    axis = tuple(axis) if isinstance(axis, list) else axis
    if name in ("cummax", "cummin"):
        line, axis = (np.ravel(x), 0) if axis is None else (x, axis)
        return bool((np.diff(np.sort(line, axis), axis=axis) < 1e-9).any())
    for extreme in extremes:
        near = np.isclose(x, extreme(x, axis=axis, keepdims=True), rtol=1e-9, atol=1e-12)
        if (near.sum(axis=axis) > 1).any():
            return True
    return False


@cache
def own_gradients() -> frozenset[str]:
    """Records of the op table whose gradients are not their values' derivatives."""
    own = "symdnn.ops.core.gradient_control"
    named = {f"case.{n}": [o.__module__ for o in c.ops] for n, c in cases().items()}
    implicit = ("case.random_log_gamma", "case.random_von_mises")  # by the distribution
    return frozenset(p for p, modules in named.items() if own in modules or p.startswith(implicit))


class SmoothGrowth(Growth):
    """A growth in double precision whose steps have derivatives where they stand."""

    def take(self, step: Step) -> list[Term]:
        """Add a step, away from zeros (of ``triu``, say) where it has no derivative."""
        if step.path in own_gradients():
            raise Unusable("its gradient is another one, by design")
        new = super().take(step)
        try:
            self._check_wide(step, new)
            check_smooth(step, lambda r: pick(self.numbers.results[0], r), new[0].base)
        except Unusable:
            self.terms = [t for t in self.terms if t not in new]
            raise
        return new

    def _check_wide(self, step: Step, new: list[Term]) -> None:
        """Raises where something inside of a step has less than double precision."""
        operands = [pick(self.symbols, r) for r in step.refs()]
        narrow = any(kind(v.type.dtype) in "fc" and v.type.dtype not in DTYPES for v in operands)
        if any(t.kind in "fc" and t.dtype not in DTYPES for t in new) or (
            narrow and is_composed([t.v for t in new], operands)
        ):
            raise Unusable("a gradient would be rounded to it")


def check_smooth(step: Step, value: Callable[[Ref], Any], result: Any) -> None:
    """Raises :class:`Unusable` where a step has no derivative, or symdnn another by choice."""
    name = step.path.split(".")[-1]
    poles = ((0.0,) if name in AT_ZERO else ()) + ((1.0, 2.0) if name in AT_ONE else ())
    for a in [*map(value, step.refs()), result]:
        _stay_away(a, poles)
    if name in OF_LAST and step.args and isinstance(step.args[-1], Ref):
        _stay_away(value(step.args[-1]), (0.0,))
    if step.args and isinstance(step.args[0], Ref) and tied(step, value(step.args[0])):
        raise Unusable("each of several equal elements takes the whole gradient")


def _stay_away(value: Any, poles: Sequence[float]) -> None:
    a = np.asarray(value)
    if a.dtype.kind in "fc" and a.size:
        for p in poles:
            if np.abs(np.abs(a) - p).min() < 1e-7:
                raise Unusable(f"{p} is among the values")


@dataclass
class Problem:
    """One output of a program, the inputs that it is differentiated by, and directions."""

    program: Program
    inputs: list[Variable]
    symbols: list[Any]
    out: Variable
    wrt: list[int]  # places of the inputs among the inputs
    weights: np.ndarray
    along: list[np.ndarray]
    second: list[np.ndarray]
    #: The function that reverse mode is asked of.
    by: str = "grad"
    #: The largest float that computing the cost has met.
    peak: float = 0.0

    def cost(self, arrays: Sequence[Any]) -> float:
        """The weighted sum of the output, by NumPy."""
        numbers = Numbers(np.random.default_rng(0), 0)
        known: dict[Any, Any] = {}
        given = iter(arrays)
        for k, item in enumerate(self.program.items):
            made = self.symbols[k]
            several = isinstance(made, list | tuple)
            outs = list(made) if several else [made]
            for j, o in enumerate(outs):
                known[(k, j if several else None)] = o
            if isinstance(item, Input):
                numbers.add_input(replace(item, value=np.asarray(next(given))))
            else:
                numbers.step(item, outs, not several, known)
        for found in known:
            value = np.asarray(pick(numbers.results[0], Ref(*found)))
            if value.dtype.kind in "fc":
                self.peak = max(self.peak, float(np.abs(value).max(initial=0.0)))
        value = pick(numbers.results[0], self.program.outputs[0])
        if np.shape(value) != self.weights.shape:
            raise Unusable("the size of the result depends on the values")
        return float(np.sum(np.real(value) * self.weights))

    def moved(self, t: float) -> list[np.ndarray]:
        arrays = self.program.arrays()
        for k, d in zip(self.wrt, self.along):
            arrays[k] = arrays[k] + t * d
        return arrays

    def derivatives(self) -> dict[str, Variable]:
        """The directional derivative by reverse mode, and by forward mode."""
        wrt = [self.inputs[k] for k in self.wrt]
        grads = self._reverse(wrt)
        along = sum((g * T.constant(d)).sum() for g, d in zip(grads, self.along))
        forward = T.Rop(self.out, wrt, [T.constant(d) for d in self.along],
                        disconnected_outputs="ignore")  # fmt: skip
        found = {self.by: along}
        if forward is not None:
            found["Rop"] = (forward * T.constant(self.weights)).sum()
        return found

    def _reverse(self, wrt: list[Variable]) -> list[Any]:
        weights = T.constant(self.weights)
        if self.by == "Lop":
            return list(T.Lop(self.out, wrt, weights, disconnected_inputs="ignore"))
        if self.by == "jacobian" and self.out.type.ndim == 1:
            rows = T.jacobian(self.out, wrt, disconnected_inputs="ignore")
            return [T.tensordot(weights, r, axes=1) for r in rows]
        cost = (self.out * weights).sum()
        return list(T.grad(cost, wrt, disconnected_inputs="ignore"))

    def second_order(self, first: Variable) -> Variable:
        """The derivative of ``first`` along the second direction."""
        wrt = [self.inputs[k] for k in self.wrt]
        if self.by == "hessian" and len(wrt) == 1 and wrt[0].type.ndim == 1:
            matrix = T.hessian((self.out * T.constant(self.weights)).sum(), wrt[0], None, "ignore")
            return T.dot(T.dot(T.constant(self.along[0]), matrix), T.constant(self.second[0]))
        grads = T.grad(first, wrt, disconnected_inputs="ignore")
        return sum((g * T.constant(d)).sum() for g, d in zip(grads, self.second))


def problem(program: Program, rng: np.random.Generator) -> Problem | None:
    """The program with directions, or None where nothing can be differentiated.

    Raises :class:`Unusable` where a step has no derivative.
    """
    inputs, symbols = variables(program)
    out = pick(symbols, program.outputs[0])
    if out.type.dtype != "float64":
        return None
    reached = set(graph_inputs([out]))
    wrt = [k for k, v in enumerate(inputs) if v.type.dtype == "float64" and v in reached]
    if not wrt:
        return None
    arrays = program.arrays()
    shape = np.shape(_smooth_value(program, symbols))

    def direction() -> list[np.ndarray]:
        return [np.asarray(rng.uniform(0.5, 1, arrays[k].shape)
                           * rng.choice([-1.0, 1.0], arrays[k].shape)) for k in wrt]  # fmt: skip

    weights = np.asarray(rng.uniform(0.5, 1.5, shape))
    ways = ["grad"] * 6 + ["Lop", "jacobian", "hessian"]
    return Problem(program, inputs, symbols, out, wrt, weights, direction(), direction(),
                   str(rng.choice(ways)))  # fmt: skip


def _smooth_value(program: Program, symbols: list[Any]) -> Any:
    values = replay(program, symbols, np.random.default_rng(0), 0)
    for k, item in enumerate(program.items):
        if isinstance(item, Step):
            result = values.get((k, None)) or values[(k, 0)]
            check_smooth(item, lambda r: values[(r.at, r.item)][0], result[0])
    r = program.outputs[0]
    return values[(r.at, r.item)][0]


def quotient(
    f: Callable[[float], float], largest: Callable[[], float] = lambda: 0.0
) -> tuple[float, float] | None:
    """The derivative of ``f`` at 0, and how wrong it may be; None at a kink or a pole.

    ``largest`` says afterwards how large numbers were that are rounded on the way.
    """
    at = f(0.0)
    ahead, behind = [f(h) for h in STEPS], [f(-h) for h in STEPS]
    if not np.isfinite([at, *ahead, *behind]).all():
        return None
    central = [(a - b) / (2 * h) for a, b, h in zip(ahead, behind, STEPS)]
    bends = [abs(a + b - 2 * at) / h for a, b, h in zip(ahead, behind, STEPS)]
    size = max(abs(at), *(abs(v) for v in ahead + behind), largest(), 1e-300)
    floor = 64 * 2.0**-53 * size / STEPS[-1]
    if bends[2] > 0.75 * bends[0] and bends[2] > 1e-6 * max(abs(central[2]), 1) + floor:
        return None  # it does not vanish with the step: a kink
    r1, r2 = ((4 * b - a) / 3 for a, b in pairwise(central))
    return (16 * r2 - r1) / 15, abs(r2 - r1) + floor


def _slope(p: Problem) -> tuple[float, float] | None:
    return quotient(lambda t: p.cost(p.moved(t)), lambda: p.peak)


def judged(value: float, difference: tuple[float, float], slack: float = 1.0) -> str:
    """``""`` if they agree, ``"?"`` if the quotient is too rough, else what is wrong."""
    want, rough = difference
    tolerance = slack * (4 * rough + 1e-8 * abs(want) + 1e-12)
    if not np.isfinite(value):
        return f"{value}, differences give {want:.12g}"
    if abs(value - want) <= tolerance:
        return ""
    if tolerance > 1e-3 * max(abs(want), abs(value)):
        return "?"
    return f"{value:.12g}, differences give {want:.12g} +- {tolerance:.1g}"


def by_peers(ctx: Context, p: Problem, value: float) -> str:
    """As :func:`judged`, by JAX and PyTorch: wrong if they agree among them and not with us."""
    arrays = p.program.arrays()
    found = peers.slopes(p.program, p.wrt, p.weights, p.along, p.cost(arrays))
    if not found:
        return "?"
    ctx.count("judged by peers")
    if any(abs(value - want) <= 1e-7 * size + 1e-12 for want, size in found.values()):
        return ""
    (one, size), *more = found.values()
    agree = all(abs(w - one) <= 1e-7 * size + 1e-12 for w, _ in more)
    text = ", ".join(f"{k} gives {w:.12g}" for k, (w, _) in found.items())
    return f"{value:.12g}, {text}" if agree else "?"


# -- checking -------------------------------------------------------------------------------------


def check(ctx: Context) -> list[Failure]:
    """Some programs, their derivatives in one function."""
    rng = ctx.rng
    failures: list[Failure] = []
    mode, _ = draw_mode(rng, ctx.device)
    found: list[tuple[Problem, dict[str, Variable], tuple[float, float]]] = []
    for _ in range(GROUP):
        p = _grown(ctx, rng, failures)
        if p is None:
            continue
        try:
            difference = _slope(p)
        except Unusable:
            continue
        if difference is None:
            ctx.count("undecided")
            continue
        try:
            found.append((p, p.derivatives(), difference))
        except (NonDifferentiable, NotImplementedError):
            ctx.count("without gradient")
        except Exception as error:
            failures.append(_report(ctx, p, f"grad raises {error_text(error)}", mode))
    return failures + _run(ctx, found, mode, rng)


def _grown(ctx: Context, rng: np.random.Generator, failures: list[Failure]) -> Problem | None:
    among = DTYPES[:3] if rng.random() < 0.8 else (*DTYPES, *BESIDE)
    g = SmoothGrowth(rng, SIZES, among, TALLY, smooth_values)
    try:
        grow(g, int(rng.integers(1, 7)))
    except RawError:
        return None  # the area expressions reports it
    ends = [t for t in g.sinks() if t.dtype == "float64" and t.base.size]
    if not ends:
        return None
    try:
        return problem(g.program([ends[-1]]).pruned(), rng)
    except Unusable:
        return None
    except SymdnnError as error:
        failures.append(ctx.fail(f"raises {error}", script(g.program([ends[-1]]).pruned(), [])))
        return None


def _run(
    ctx: Context, found: list[tuple[Problem, dict[str, Variable], tuple[float, float]]],
    mode: Any, rng: np.random.Generator,
) -> list[Failure]:  # fmt: skip
    if not found:
        return []
    inputs = [v for p, _, _ in found for v in p.inputs]
    arrays = [a for p, _, _ in found for a in p.program.arrays()]
    outs = [v for _, named, _ in found for v in named.values()]
    try:
        f = symdnn.function(inputs, outs, mode=mode, on_unused_input="ignore")
        results = iter([float(r) for r in f(*arrays)])
        plain = iter([float(r) for r in evaluate(outs, dict(zip(inputs, arrays)))])
    except Exception as error:
        if len(found) > 1:
            return [x for one in found for x in _run(ctx, [one], mode, rng)]
        said = f"raises {error_text(error)}"
        return [_report(ctx, found[0][0], said, mode)]
    failures = []
    for p, named, difference in found:
        said = []
        for name in named:
            for how, value in (("compiled", next(results)), ("by references", next(plain))):
                told = judged(value, difference)
                told = by_peers(ctx, p, value) if told == "?" else told
                said.append((f"{name} {how}", told))
        ctx.count("undecided" if any(s == "?" for _, s in said) else "gradients")
        wrong = [f"{n}: {s}" for n, s in said if s not in ("", "?")]
        if wrong:
            failures.append(_report(ctx, p, wrong[0], mode))
        elif rng.random() < 0.3:
            failures += _second(ctx, p, named[p.by], mode)
    return failures


def _second(ctx: Context, p: Problem, first: Variable, mode: Any) -> list[Failure]:
    """Second derivatives against differences of first ones."""
    said = _second_wrong(p, first, mode)
    if said is None:
        return []
    ctx.count("undecided" if said == "?" else "second derivatives")
    return [] if said in ("", "?") else [_report(ctx, p, f"second order: {said}", mode)]


# -- a failure ------------------------------------------------------------------------------------


def still_wrong(program: Program, mode: Any) -> str:
    """What is wrong with the derivatives of a program's output, or ``""``."""
    try:
        p = problem(program, np.random.default_rng(1))
        difference = None if p is None else _slope(p)
    except Exception:
        return ""
    if p is None or difference is None:
        return ""
    ctx = Context("gradients", 0, 0)
    try:
        named = p.derivatives()
    except (NonDifferentiable, NotImplementedError):
        return ""
    except Exception as error:
        return f"grad raises {error_text(error)}"
    return _wrong(ctx, p, named, difference, mode)


def _wrong(ctx: Context, p: Problem, named: Any, difference: Any, mode: Any) -> str:
    arrays, outs = p.program.arrays(), list(named.values())
    try:
        f = symdnn.function(p.inputs, outs, mode=mode, on_unused_input="ignore")
        results = [float(r) for r in f(*arrays)]
        plain = [float(r) for r in evaluate(outs, dict(zip(p.inputs, arrays)))]
    except Exception as error:
        return f"raises {error_text(error)}"
    for name, a, b in zip(named, results, plain):
        for how, value in (("compiled", a), ("by references", b)):
            said = judged(value, difference)
            if said not in ("", "?"):
                return f"{name} {how}: {said}"
    found = _second_wrong(p, named[p.by], mode)
    return f"second order: {found}" if found not in (None, "", "?") else ""


def _second_wrong(p: Problem, first: Variable, mode: Any) -> str | None:
    """What is wrong with them: "?" where differences say nothing, None where there are none."""
    try:
        outs = [first, p.second_order(first)]
        f = symdnn.function(p.inputs, outs, mode=mode, on_unused_input="ignore")
        turned = replace(p, along=p.second)
        difference = quotient(lambda t: float(f(*turned.moved(t))[0]))
        value = float(f(*p.program.arrays())[1])
    except (NonDifferentiable, NotImplementedError):
        return None
    except Exception as error:
        return f"raises {error_text(error)}"
    return "?" if difference is None else judged(value, difference, 4.0)


def _report(ctx: Context, p: Problem, what: str, mode: Any) -> Failure:
    small = reduced(p.program, lambda q: alike(still_wrong(q, mode), what), budget=60)
    found = still_wrong(small, mode)
    tail = _script_tail(small, mode) if found else []
    return ctx.fail(found or what, script(small, tail))


def _script_tail(program: Program, mode: Any) -> list[str]:
    p = problem(program, np.random.default_rng(1))
    assert p is not None
    difference = _slope(p)
    assert difference is not None
    return [
        "rng = np.random.default_rng(1)",
        f"wrt, at = [inputs[k] for k in {p.wrt}], [arrays[k] for k in {p.wrt}]",
        f"w = rng.uniform(0.5, 1.5, {p.weights.shape})",
        "along = [rng.uniform(0.5, 1, a.shape) * rng.choice([-1.0, 1.0], a.shape) for a in at]",
        "cost = (outputs[0] * w).sum()",
        "grads = T.grad(cost, wrt, disconnected_inputs='ignore')",
        "slope = sum((g * d).sum() for g, d in zip(grads, along))",
        f"f = symdnn.function(inputs, [slope, *grads], mode={mode_text(mode)}, "
        "on_unused_input='ignore')",
        f"print(f(*arrays), 'differences along the direction give', {difference[0]!r})",
    ]


AREA = Area("gradients", "gradients", check, in_tests=60, on_device=True)
