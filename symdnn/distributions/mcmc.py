"""Draws from a density by Hamiltonian Monte Carlo: the No-U-Turn sampler as one compiled function.

A function of :func:`nuts` is a loop over draws (``Scan``), in which a draw is a loop over leapfrog
steps that ends by itself. The tree of steps is built without recursion: the momenta that later
leaves are compared with are kept in a table of one row for each depth (Phan, Pradhan and Jankowiak,
"Composable effects for flexible and accelerated probabilistic programming in NumPyro", 2019; Lao
and Dillon, "Unrolled implementation of No-U-Turn sampler", 2019). Proposals are drawn from a
trajectory by their weights (Betancourt, "A conceptual introduction to Hamiltonian Monte Carlo",
2017). The step size is found by dual averaging (Hoffman and Gelman, 2014), a diagonal mass matrix
in windows as in Stan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.distributions.adaptation import Adaptation, adapted, begun, schedule
from symdnn.errors import NonDifferentiable, OptionError
from symdnn.graph.values.tree import Tree, flatten, unflatten
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.control.loops import fori_loop, scan, while_loop
from symdnn.ops.random.random_stream import RandomStream
from symdnn.transforms.derivatives import value_and_grad
from symdnn.transforms.jit import jit

__all__ = ["Draws", "hmc", "nuts"]

Values = dict[str, Any]
#: An energy so far above that of the start means that the step is too large.
_MOST_ENERGY = 1000.0


@dataclass(frozen=True)
class Draws:
    """What a sampler returns.

    ``values`` is a tree like the start, with arrays ``(chains, draws, ...)``. ``log_density``,
    ``acceptance`` (its mean over a trajectory), ``steps`` (leapfrog steps) and ``diverging`` have a
    number for each draw, ``(chains, draws)``. ``step_size`` and ``inverse_mass`` (in the order of
    the leaves) are those after the warm-up, for each chain.
    """

    values: Any
    log_density: Any
    acceptance: Any
    steps: Any
    diverging: Any
    step_size: Any
    inverse_mass: Any


def nuts(
    log_density: Callable[[Any], Any],
    start: Any,
    draws: int = 1000,
    warmup: int = 1000,
    *,
    chains: int = 1,
    seed: int | None = None,
    step_size: float = 0.1,
    target_acceptance: float = 0.8,
    max_depth: int = 10,
) -> Draws:
    """Draws by the No-U-Turn sampler (Hoffman and Gelman, "The No-U-Turn sampler", 2014).

    ``log_density`` is a function, traced as by :func:`symdnn.jit`, of a tree of arrays; it returns
    a real scalar, the log density up to a constant. All real numbers must be allowed: take the
    logarithm of what is positive, with its Jacobian. ``start`` is such a tree, from which each
    chain begins. ``warmup`` draws find the step size and a diagonal mass matrix, and are dropped. A
    trajectory has at most ``2**max_depth`` steps. All is computed in float64.

    Raises :class:`~symdnn.errors.NonDifferentiable` for a density that is no scalar.

    >>> import numpy as np
    >>> import symdnn.tensor as T
    >>> from symdnn.distributions import mcmc
    >>> found = mcmc.nuts(lambda x: -((x - 3) ** 2).sum() / 8, np.zeros(2), 300, 200, seed=1)
    >>> found.values.shape
    (1, 300, 2)
    >>> bool(abs(found.values.mean() - 3) < 0.4), bool(abs(found.values.std() - 2) < 0.4)
    (True, True)
    """
    move = partial(_nuts_move, max_depth=max_depth)
    return _run(move, log_density, start, draws, warmup, chains, seed, step_size, target_acceptance)


def hmc(
    log_density: Callable[[Any], Any],
    start: Any,
    draws: int = 1000,
    warmup: int = 1000,
    *,
    leaps: int = 16,
    chains: int = 1,
    seed: int | None = None,
    step_size: float = 0.1,
    target_acceptance: float = 0.8,
) -> Draws:
    """Draws by Hamiltonian Monte Carlo with trajectories of ``leaps`` steps; the rest is as for
    :func:`nuts` (Duane and others, "Hybrid Monte Carlo", 1987).

    >>> import numpy as np
    >>> from symdnn.distributions import mcmc
    >>> found = mcmc.hmc(lambda x: -(x**2).sum() / 2, np.zeros(3), 400, 200, seed=1)
    >>> bool(abs(found.values.std() - 1) < 0.2)
    True
    """
    if leaps < 1:
        raise OptionError(f"hmc: wanted one leap at least, got {leaps}")
    move = partial(_hmc_move, leaps=leaps)
    return _run(move, log_density, start, draws, warmup, chains, seed, step_size, target_acceptance)


# -- chains ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flat:
    """A tree of arrays as one vector."""

    tree: Tree
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, start: Any) -> tuple[_Flat, np.ndarray[Any, Any]]:
        """The form of a tree, and its vector in float64."""
        leaves, tree = flatten(start)
        arrays = [np.asarray(v, np.float64) for v in leaves]
        if not arrays:
            raise OptionError("wanted a start with one array at least, got none")
        vector = np.concatenate([a.reshape(-1) for a in arrays])
        return cls(tree, tuple(a.shape for a in arrays)), vector

    def tree_of(self, vector: Any, lead: tuple[int, ...] = ()) -> Any:
        """The tree of a vector, whose leading dimensions (``lead``) stay."""
        found, at = [], 0
        for shape in self.shapes:
            count = prod(shape)
            found.append(vector[..., at : at + count].reshape((*lead, *shape)))
            at += count
        return unflatten(self.tree, found)


def _run(
    move: Callable[..., Any], log_density: Callable[[Any], Any], start: Any, draws: int,
    warmup: int, chains: int, seed: int | None, step_size: float, target: float,
) -> Draws:  # fmt: skip
    if min(draws, chains) < 1 or warmup < 0:
        raise OptionError(
            f"wanted draws and chains of one at least, got {draws} and {chains}, warmup {warmup}"
        )
    flat, vector = _Flat.of(start)
    stream = RandomStream(seed)
    slope = value_and_grad(lambda q: _density(log_density(flat.tree_of(q))))
    warm = schedule(warmup)

    @jit
    def chain(q: Variable) -> Any:
        lp, g = slope(q)
        first: Values = {"q": q, "lp": lp, "g": g}
        tuning = begun(step_size, vector.size)

        def step(carry: Any, x: Any, adapts: bool) -> Any:
            point, tuning = carry
            size = tuning.step_size if adapts else tuning.mean_step_size
            moved, facts = move(stream, slope, point, size, tuning.inverse_mass)
            if adapts:
                tuning = adapted(tuning, moved["q"], facts["acceptance"], x, target)
                return (moved, tuning), None
            return (moved, tuning), {"q": moved["q"], "lp": moved["lp"], **facts}

        carry: Any = (first, tuning)
        if warmup:
            carry, _ = scan(lambda c, x: step(c, x, True), carry, warm)
        (_, tuning), found = scan(lambda c, x: step(c, x, False), carry, length=draws)
        return found, tuning

    found = [chain(vector) for _ in range(chains)]
    return _gathered(flat, found, draws)


def _density(value: Any) -> Variable:
    v = as_variable(value)
    if v.type.ndim != 0 or not v.type.is_float:
        raise NonDifferentiable(f"the log density must be a real scalar, got the type {v.type}")
    return v.astype("float64")


def _gathered(flat: _Flat, found: list[tuple[Mapping[str, Any], Adaptation]], draws: int) -> Draws:
    facts = {k: np.stack([np.asarray(f[k]) for f, _ in found]) for k in found[0][0]}
    return Draws(
        flat.tree_of(facts["q"], (len(found), draws)), facts["lp"], facts["acceptance"],
        facts["steps"], facts["diverging"],
        np.array([np.asarray(t.mean_step_size) for _, t in found]),
        np.stack([np.asarray(t.inverse_mass) for _, t in found]),
    )  # fmt: skip


# -- moves ----------------------------------------------------------------------------------------

Slope = Callable[[Any], Any]


def _leap(slope: Slope, q: Any, p: Any, g: Any, step: Any, inverse_mass: Any) -> Any:
    """One leapfrog step: position, momentum, log density and its gradient."""
    half = p + step / 2 * g
    q = q + step * inverse_mass * half
    lp, g = slope(q)
    return q, half + step / 2 * g, lp, g


def _kinetic(p: Any, inverse_mass: Any) -> Any:
    return (p * p * inverse_mass).sum() / 2


def _gain(start: Any, lp: Any, p: Any, inverse_mass: Any) -> Any:
    """By how much a point is more probable than the start; -inf where it is NaN."""
    gain = lp - _kinetic(p, inverse_mass) - start
    return T.switch(T.isnan(gain), -np.inf, gain)


def _momentum(stream: RandomStream, like: Any, inverse_mass: Any) -> Any:
    return stream.normal(like.shape, ndim=1, dtype="float64") / T.sqrt(inverse_mass)


def _hmc_move(
    stream: RandomStream, slope: Slope, point: Values, step: Any, inverse_mass: Any, leaps: int
) -> tuple[Values, Values]:
    momentum = _momentum(stream, point["q"], inverse_mass)
    start = point["lp"] - _kinetic(momentum, inverse_mass)

    def leap(_: Any, v: Any) -> Any:
        return _leap(slope, v[0], v[1], v[3], step, inverse_mass)

    q, p, lp, g = fori_loop(0, leaps, leap, (point["q"], momentum, point["lp"], point["g"]))
    gain = _gain(start, lp, p, inverse_mass)
    taken = T.log(stream.uniform((), dtype="float64")) < gain
    moved = {k: T.switch(taken, v, point[k]) for k, v in {"q": q, "lp": lp, "g": g}.items()}
    facts = {
        "acceptance": T.minimum(T.exp(gain), 1.0), "steps": T.constant(np.int64(leaps)),
        "diverging": gain < -_MOST_ENERGY,
    }  # fmt: skip
    return moved, facts


def _nuts_move(
    stream: RandomStream, slope: Slope, point: Values, step: Any, inverse_mass: Any, max_depth: int
) -> tuple[Values, Values]:
    """A draw: each turn of the loop is a leapfrog step, the last one of a subtree merges it."""
    p = _momentum(stream, point["q"], inverse_mass)
    start = point["lp"] - _kinetic(p, inverse_mass)
    end = {"q": point["q"], "p": p, "g": point["g"]}
    rows = T.zeros((max_depth, 1), dtype="float64") + 0 * p
    tree = {"left": end, "right": end, "chosen": dict(point), "weight": 0.0, "sum": p}
    sub = {"end": end, "chosen": dict(point), "weight": 0.0, "sum": p,
           "momenta": rows, "sums": rows, "forwards": True, "leaf": 0}  # fmt: skip
    facts = {"acceptance": 0.0, "steps": 0, "diverging": False}
    state = {"tree": tree, "sub": sub, "facts": facts, "depth": 0, "done": False}

    def turn(state: Values) -> Values:
        uniform = T.cast(stream.uniform((3,), dtype="float32"), "float64")
        sub, leaf = _grown(uniform, slope, state, start, step, inverse_mass)
        size = T.left_shift(T.constant(np.int64(1)), state["depth"])
        stops = T.or_(leaf["diverging"], leaf["turned"])
        whole = T.and_(T.ge(sub["leaf"], size), T.invert(stops))
        tree = _merged(uniform[2], state["tree"], sub)
        found = {
            "tree": _chosen(whole, tree, state["tree"]),
            "sub": {**sub, "leaf": T.switch(whole, 0, sub["leaf"])},
            "facts": leaf["facts"],
            "depth": state["depth"] + T.cast(whole, "int64"),
        }
        first, last = tree["left"]["p"], tree["right"]["p"]
        ends = T.and_(whole, _turns(first, last, tree["sum"], inverse_mass))
        deep = T.ge(found["depth"], max_depth)
        return {**found, "done": T.or_(T.or_(stops, ends), deep)}

    state = _settled(state)
    last = while_loop(lambda s: T.invert(s["done"]), turn, state)
    facts = last["facts"]
    mean = facts["acceptance"] / facts["steps"]
    return last["tree"]["chosen"], {**facts, "acceptance": mean}


def _settled(state: Any) -> Any:
    """The numbers of a state as variables of fixed dtypes."""
    leaves, tree = flatten(state)
    return unflatten(tree, [v if isinstance(v, Variable) else _fixed(v) for v in leaves])


def _fixed(v: Any) -> Variable:
    dtype = {bool: "bool", int: "int64"}.get(type(v), "float64")
    return T.constant(np.asarray(v, dtype))


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    """Each leaf of one tree or of the other."""
    ours, tree = flatten(one)
    theirs, _ = flatten(other)
    return unflatten(tree, [T.switch(condition, a, b) for a, b in zip(ours, theirs, strict=True)])


def _grown(
    uniform: Any, slope: Slope, state: Values, start: Any, step: Any, inverse_mass: Any
) -> tuple[Values, Values]:
    """The subtree with one leaf more, and what is to be known of it."""
    sub, tree, facts = state["sub"], state["tree"], state["facts"]
    first = T.eq(sub["leaf"], 0)
    forwards = T.switch(first, uniform[0] < 0.5, sub["forwards"])
    from_ = _chosen(first, _chosen(forwards, tree["right"], tree["left"]), sub["end"])
    signed = T.switch(forwards, step, -step)
    q, p, lp, g = _leap(slope, from_["q"], from_["p"], from_["g"], signed, inverse_mass)
    gain = _gain(start, lp, p, inverse_mass)
    before = T.switch(first, -np.inf, sub["weight"])
    weight = T.logaddexp(before, gain)
    taken = T.log(uniform[1]) < gain - weight
    leaf = {"q": q, "lp": lp, "g": g}
    total = T.switch(first, p, sub["sum"] + p)
    momenta, sums, turned = _compared(sub, p, total, inverse_mass)
    diverging = gain < -_MOST_ENERGY
    grown = {
        "end": {"q": q, "p": p, "g": g},
        "chosen": _chosen(T.or_(first, taken), leaf, sub["chosen"]),
        "weight": weight, "sum": total, "momenta": momenta, "sums": sums,
        "forwards": forwards, "leaf": sub["leaf"] + 1,
    }  # fmt: skip
    facts = {
        "acceptance": facts["acceptance"] + T.minimum(T.exp(gain), 1.0),
        "steps": facts["steps"] + 1,
        "diverging": T.or_(facts["diverging"], diverging),
    }
    return grown, {"facts": facts, "diverging": diverging, "turned": turned}


def _compared(sub: Values, p: Any, total: Any, inverse_mass: Any) -> tuple[Any, Any, Any]:
    """The table of momenta and sums, and whether a subtree that ends here has turned.

    An even leaf is the first of some subtrees: it is kept in the row with the number of bits of
    ``leaf // 2``. An odd leaf ends as many subtrees as it has trailing ones, whose first leaves are
    in the rows before that one.
    """
    count = sub["momenta"].shape[0]
    places = T.arange(count)
    bits = T.bitwise_and(T.right_shift(sub["leaf"], places), 1)
    row = bits.sum() - bits[0]
    ones = T.cumprod(bits).sum()
    even = T.eq(bits[0], 0)
    here = T.and_(T.eq(places, row), even).dimshuffle(0, "x")
    momenta, sums = T.switch(here, p, sub["momenta"]), T.switch(here, total, sub["sums"])
    ended = T.and_(T.and_(T.le(places, row), T.gt(places, row - ones)), T.invert(even))
    turns = _turns(momenta, p, total - sums + momenta, inverse_mass)
    return momenta, sums, T.and_(ended, turns).any()


def _turns(left: Any, right: Any, total: Any, inverse_mass: Any) -> Any:
    """Whether the ends of a trajectory, of this sum of momenta, have begun to approach."""
    middle = (total - (left + right) / 2) * inverse_mass
    return T.or_(T.le((left * middle).sum(-1), 0), T.le((right * middle).sum(-1), 0))


def _merged(uniform: Any, tree: Values, sub: Values) -> Values:
    """The tree with a whole subtree, whose choice is preferred."""
    forwards = sub["forwards"]
    taken = T.log(uniform) < sub["weight"] - tree["weight"]
    return {
        "left": _chosen(forwards, tree["left"], sub["end"]),
        "right": _chosen(forwards, sub["end"], tree["right"]),
        "chosen": _chosen(taken, sub["chosen"], tree["chosen"]),
        "weight": T.logaddexp(tree["weight"], sub["weight"]),
        "sum": tree["sum"] + sub["sum"],
    }
