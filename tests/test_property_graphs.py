"""Random graphs: by the references, compiled as given, and rewritten, they give the same.

A graph is grown from inputs whose sizes are symbols; it then runs on several assignments of sizes
to the symbols, zero and one among them. Comparisons and the like are applied to values that no
rounding touched, so that no rewrite may turn their result around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.debug import DebugMode
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import graph_inputs
from symdnn.graph.variable import Variable

SYMBOLS = ("a", "b", "c")


@dataclass(frozen=True)
class Term:
    """A variable, the names of its sizes (equal names: equal sizes), and whether it is exact."""

    v: Variable
    dims: tuple[str, ...]
    exact: bool = False


@dataclass
class Growth:
    """A graph that grows: ``choose(n)`` makes each choice, a number below ``n``."""

    choose: Callable[[int], int]
    inputs: list[Term] = field(default_factory=list)
    scalars: list[Variable] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)

    def pick(self, allowed: Callable[[Term], bool] = lambda t: True) -> Term | None:
        found = [t for t in self.terms if allowed(t)]
        return self.of(found) if found else None

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[self.choose(len(choices))]

    def flip(self) -> bool:
        return self.choose(2) == 1

    def axis(self, t: Term) -> int:
        return self.choose(len(t.dims))

    def order(self, n: int) -> list[Any]:
        left = list(range(n))
        return [left.pop(self.choose(len(left))) for _ in range(n)]

    def bound(self) -> Variable:
        """A new integer input, for bounds that are known only at the call."""
        self.scalars.append(T.lscalar(f"k{len(self.scalars)}"))
        return self.scalars[-1]


UNARY = [
    (T.tanh, False), (T.sin, False), (T.nnet.sigmoid, False), (abs, True), (lambda x: -x, True),
    (lambda x: T.exp(T.clip(x, -2, 2)), False), (lambda x: x * 0.5 + 1, False),
    (lambda x: x * x, False), (lambda x: T.log(1 + x * x), False), (T.nnet.softplus, False),
    (lambda x: T.sqrt(x * x + 1), False), (lambda x: 1 - x, False), (lambda x: x * 1 + 0, True),
    (lambda x: x - x, True), (lambda x: x / (1 + abs(x)), False), (lambda x: T.nnet.relu(x), True),
    (lambda x: T.cast(x, "float32").astype("float64"), True), (lambda x: x**3 / 10, False),
]  # fmt: skip

BINARY = [
    (lambda x, y: x + y, False), (lambda x, y: x - y, False), (lambda x, y: x * y, False),
    (lambda x, y: x / (1 + y * y), False), (T.maximum, True), (T.minimum, True),
    (lambda x, y: x * y + x, False), (lambda x, y: (x + y) - y, False),
]  # fmt: skip

REDUCE = [
    T.sum,
    lambda x, axis, keepdims: T.prod(T.tanh(x), axis=axis, keepdims=keepdims),
    # A mean that is a number over nothing, too.
    lambda x, axis, keepdims: T.sum(x, axis=axis, keepdims=keepdims) / (x.shape[axis] + 1),
]


def unary(g: Growth) -> Term | None:
    t = g.pick()
    if t is None:
        return None
    op, keeps = g.of(UNARY)
    return Term(op(t.v), t.dims, t.exact and keeps)


def partner(g: Growth, t: Term, exact: bool = False) -> Term | None:
    def fits(o: Term) -> bool:
        return (
            len(o.dims) == len(t.dims)
            and all(m == n or "1" in (m, n) for m, n in zip(o.dims, t.dims))
            and (o.exact or not exact)
        )

    return g.pick(fits)


def wider(a: Term, b: Term) -> tuple[str, ...]:
    return tuple(n if m == "1" else m for m, n in zip(a.dims, b.dims))


def binary(g: Growth) -> Term | None:
    t = g.pick()
    o = partner(g, t) if t else None
    if t is None or o is None:
        return None
    op, keeps = g.of(BINARY)
    return Term(op(t.v, o.v), wider(t, o), keeps and t.exact and o.exact)


def choose(g: Growth) -> Term | None:
    t = g.pick(lambda t: t.exact)
    o = partner(g, t, exact=True) if t else None
    if t is None or o is None:
        return None
    return Term(T.switch(T.lt(t.v, o.v), t.v * 2, o.v + 1), wider(t, o))


def reduce_(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) > 0)
    if t is None:
        return None
    axis, keep = g.axis(t), g.flip()
    op = g.of(REDUCE)
    rest = [d for i, d in enumerate(t.dims) if i != axis]
    dims = (*rest[:axis], *(["1"] if keep else []), *rest[axis:])
    return Term(op(t.v, axis=axis, keepdims=keep), tuple(dims))


def shuffle(g: Growth) -> Term | None:
    t = g.pick()
    if t is None:
        return None
    order = g.order(len(t.dims))
    if len(order) < 3 and g.flip():
        order.insert(g.choose(len(order) + 1), "x")
    dims = tuple("1" if d == "x" else t.dims[d] for d in order)
    return Term(t.v.dimshuffle(order), dims, t.exact)


def flatten(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) == 2)
    if t is None:
        return None
    count = "*".join(sorted(d for d in t.dims if d != "1")) or "1"
    name = f"({count})" if "*" in count else count
    flat = t.v.reshape((t.v.shape[0] * t.v.shape[1],)) if g.flip() else t.v.flatten()
    return Term(flat, (name,) if name != "1" else ("one",), t.exact)


def piece(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) > 0)
    if t is None:
        return None
    axis, kind = g.axis(t), g.choose(5)
    k = g.bound() if kind > 2 else None
    cut, name = [
        (slice(None, None, -1), t.dims[axis] if t.dims[axis] != "1" else "one"),
        (slice(1, None), f"({t.dims[axis]}-1)"),
        (slice(None, None, 2), f"({t.dims[axis]}/2)"),
        (slice(k, None), f"({t.dims[axis]}-{k})"),
        (slice(None, k), f"({t.dims[axis]}:{k})"),
    ][kind]
    index = tuple(cut if i == axis else slice(None) for i in range(len(t.dims)))
    return Term(t.v[index], (*t.dims[:axis], name, *t.dims[axis + 1 :]), t.exact)


def join(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) > 0)
    if t is None:
        return None
    axis = g.axis(t)

    def fits(o: Term) -> bool:
        return len(o.dims) == len(t.dims) and all(
            m == n for i, (m, n) in enumerate(zip(o.dims, t.dims)) if i != axis
        )

    o = g.pick(fits)
    assert o is not None
    name = f"({t.dims[axis]}+{o.dims[axis]})"
    dims = (*t.dims[:axis], name, *t.dims[axis + 1 :])
    return Term(T.join(axis, t.v, o.v), dims, t.exact and o.exact)


def product(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) == 2)
    o = g.pick(lambda o: len(o.dims) in (1, 2) and o.dims[0] == t.dims[1]) if t else None
    if t is None or o is None:
        return None
    return Term(T.dot(t.v, T.tanh(o.v)), (t.dims[0], *o.dims[1:]))


def softmax(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) == 2)
    if t is None:
        return None
    y = T.nnet.softmax(T.tanh(t.v))
    return Term(T.log(y) if g.flip() else y, t.dims)


def sort(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) == 1 and t.exact)
    return None if t is None else Term(T.sort(t.v), t.dims, True)


def cumulate(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) > 0)
    if t is None:
        return None
    return Term(T.extra_ops.cumsum(t.v, axis=g.axis(t)), t.dims)


def mask(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) == 1 and t.exact)
    if t is None:
        return None
    kept = t.v[T.gt(t.v, 0).nonzero()[0]]
    return Term(kept, (f"({t.dims[0]}>0 of {len(g.terms)})",), True)


def write(g: Growth) -> Term | None:
    t = g.pick(lambda t: len(t.dims) > 0)
    if t is None:
        return None
    setter = T.set_subtensor if g.flip() else T.inc_subtensor
    return Term(setter(t.v[1:], 0.25), t.dims)


def branch(g: Growth) -> Term | None:
    c, t = g.pick(lambda c: c.exact), g.pick()
    o = g.pick(lambda o: o.dims == t.dims) if t else None
    if c is None or t is None or o is None or t.v.type != o.v.type:
        return None
    return Term(symdnn.ifelse(T.gt(T.abs_(c.v).sum(), 3), t.v * 2, T.sin(o.v)), t.dims)


def gradient(g: Growth) -> Term | None:
    t, x = g.pick(), g.of(g.inputs)
    if t is None or x.v not in graph_inputs([t.v]):
        return None
    return Term(T.grad(T.tanh(t.v).sum(), x.v, disconnected_inputs="ignore"), x.dims)


BUILDERS = [
    unary, unary, unary, binary, binary, binary, choose, reduce_, reduce_, shuffle, flatten, piece,
    piece, join, product, softmax, sort, cumulate, mask, write, branch, gradient,
]  # fmt: skip


def grow(choose: Callable[[int], int], steps: int) -> Growth:
    """A graph of one to three inputs and up to ``steps`` applications."""
    g = Growth(choose)
    for i in range(1 + choose(3)):
        dims = tuple(g.of(SYMBOLS) for _ in range(1 + choose(2)))
        v = T.TensorType("float64", (None,) * len(dims))(f"x{i}")
        g.inputs.append(Term(v, dims, True))
    g.terms += g.inputs
    for _ in range(steps):
        new = g.of(BUILDERS)(g)
        if new is not None and len(new.dims) <= 3:
            g.terms.append(new)
    return g


def arguments(g: Growth, sizes: dict[str, int], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    # Few distinct values: ties happen. They are multiples of 1/8, so sums of some are exact.
    arrays: list[Any] = [rng.integers(-16, 17, [sizes[d] for d in t.dims]) / 8 for t in g.inputs]
    return [*arrays, *(int(rng.integers(-2, 4)) for _ in g.scalars)]


def check(g: Growth, modes: list[Any], assignments: list[dict[str, int]], seed: int) -> None:
    outputs = [t.v for t in g.terms[-4:]]
    inputs = [*(t.v for t in g.inputs), *g.scalars]
    functions = [symdnn.function(inputs, outputs, mode=m, on_unused_input="ignore") for m in modes]
    for k, sizes in enumerate(assignments):
        given_ = arguments(g, sizes, seed + k)
        wanted = evaluate(outputs, dict(zip(inputs, map(np.asarray, given_))))
        for f in functions:
            compare(f(*given_), wanted, f, sizes)


def compare(results: list[Any], wanted: list[Any], f: Any, sizes: dict[str, int]) -> None:
    for got, want in zip(results, wanted, strict=True):
        text = f"{f.mode}\n{sizes}"
        assert got.dtype == want.dtype, text
        assert got.shape == want.shape, text
        scale = max(float(np.max(np.abs(want), initial=0, where=np.isfinite(want))), 1)
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7 * scale, err_msg=text)


SIZES = st.fixed_dictionaries({s: st.sampled_from([0, 1, 2, 3, 5]) for s in SYMBOLS})
PLAIN = [symdnn.Mode(optimizer=o) for o in ("None", "fast_compile", "fast_run")]
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def run(data: Any, steps: int, modes: list[Any]) -> None:
    g = grow(lambda n: data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, steps)))
    assignments = [*data.draw(st.lists(SIZES, min_size=2, max_size=2)), dict.fromkeys(SYMBOLS, 0)]
    check(g, modes, assignments, data.draw(st.integers(0, 1000)))


@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(st.data())
def test_random_graphs(data: Any) -> None:
    run(data, 8, PLAIN)


@settings(max_examples=8, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(st.data())
def test_random_graphs_in_debug_mode(data: Any) -> None:
    run(data, 6, [DebugMode(stability_patience=2, check_isfinite=False)])


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=QUIET)
@given(st.data())
def test_many_random_graphs(data: Any) -> None:
    run(data, 16, PLAIN)


def test_every_builder_builds() -> None:
    """No builder is dead: each gives a term on a rich enough graph."""
    rng = np.random.default_rng(1)
    built = set()
    for _ in range(40):
        x = Term(T.dmatrix("x"), ("a", "b"), True)
        y = Term(T.dmatrix("y"), ("b", "a"), True)
        z = Term(T.dvector("z"), ("a",), True)
        g = Growth(lambda n: int(rng.integers(n)), [x, y, z], [], [x, y, z])
        for builder in BUILDERS:
            new = builder(g)
            if new is not None:
                built.add(builder.__name__)
                assert new.v.ndim == len(new.dims)
    assert built == {b.__name__ for b in BUILDERS}
