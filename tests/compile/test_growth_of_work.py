"""The work of compiling grows as the graph does, and no depth of a graph is too much."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.traverse import toposort
from symdnn.printing import debugprint, min_informative_str

CHAINS = {
    "add": lambda y, x: y + x,
    "affine": lambda y, x: T.tanh(y * 1.01 + 0.1),
    "branch": lambda y, x: T.switch(y > 0, y, x * 2),
    "cast": lambda y, x: T.cast(T.cast(y, "float16"), "float32") + x,
    "mean": lambda y, x: x - y.mean(),
    "negative": lambda y, x: -y,
    "product": lambda y, x: T.sin(y * x) + x,
    "square": lambda y, x: T.sqr(T.exp(-y)),
}


#: Steps of a chain that is deeper than Python may recurse, and the most frames of Python then.
DEPTH, MOST_FRAMES = 600, 400


@pytest.fixture
def few_frames() -> Iterator[None]:
    """Python may not recurse as deep as the chains are, which so need not be thousands of steps."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(MOST_FRAMES)
    yield
    sys.setrecursionlimit(before)


def chain(kind, length, x):
    """``length`` steps from ``x``."""
    y = x
    for _ in range(length):
        y = CHAINS[kind](y, x)
    return y


def tried(kind, length):
    """How often a rewrite was tried on the gradient of a chain."""
    x = T.vector("x")
    f = symdnn.function([x], T.grad(chain(kind, length, x).sum(), x))
    return sum(a.tried for a in f.stages.rewrites.rewrites.values())


@pytest.mark.parametrize("kind", CHAINS)
def test_rewriting_is_linear(kind):
    """Four times the depth is four times the work, give and take what does not grow."""
    assert tried(kind, 80) < 5 * tried(kind, 20)


@pytest.mark.usefixtures("few_frames")
@pytest.mark.parametrize("kind", CHAINS)
def test_deep_graphs_are_built_printed_and_copied(kind):
    """No walk recurses, so that a depth beyond Python's limit is nothing special."""
    x = T.vector("x")
    y = chain(kind, DEPTH, x)
    g = T.grad(y.sum(), x)
    count = len(toposort([g]))
    assert debugprint(g, file="str").count("\n") >= count
    assert min_informative_str(y).count("\n") >= DEPTH
    assert len(toposort([pickle.loads(pickle.dumps(g))])) == count
    assert len(toposort([copy.deepcopy(g)])) == count
    assert len(toposort([symdnn.clone(g, replace={x: T.vector("z")})])) == count


def test_indentation_is_bounded():
    """A deep tree is printed in space that grows as its nodes do."""
    x = T.vector("x")
    lines = debugprint(chain("negative", 2000, x), file="str").splitlines()
    assert len(lines) == 2001
    assert max(map(len, lines)) < 600
    assert any(line.startswith("[1000]") for line in lines)


@pytest.mark.usefixtures("few_frames")
@pytest.mark.parametrize("kind", ["add", "negative", "branch"])
def test_deep_functions_compute(kind, rng):
    """Values of a compiled chain deeper than Python recurses."""
    x = T.vector("x")
    f = symdnn.function([x], chain(kind, DEPTH, x))
    value = rng.uniform(0.1, 1, 5).astype("float32")
    want = (DEPTH + 1) * value if kind == "add" else value
    np.testing.assert_allclose(f(value), want, rtol=1e-4)


def test_chains_of_scalars_are_not_computed_for_each_element(rng):
    """Only so many numbers are computed again where an array is; a chain of them is one value."""
    s, x = T.scalar("s"), T.vector("x")
    c = s
    for _ in range(700):
        c = T.sqr(c) * 0.5 + 0.25
    f = symdnn.function([s, x], T.exp(x * c))
    value = rng.uniform(0, 1, 4).astype("float32")
    want = np.float32(0.3)
    for _ in range(700):
        want = want * want * np.float32(0.5) + np.float32(0.25)
    np.testing.assert_allclose(f(0.3, value), np.exp(value * want), rtol=1e-5)


def planned(length):
    """How many calls of Python a plan of an unrolled recurrent net takes, with its gradient."""
    x, w = T.fmatrix("x"), symdnn.shared(np.eye(4, dtype="float32"))
    h = T.dot(x, w)
    for _ in range(length):
        h = T.tanh(T.dot(h, w) + x).reshape((x.shape[0], 4))
    updates = [(w, w - np.float32(0.1) * T.grad(h.sum(), w))]
    f = symdnn.function([x], h.sum(), updates=updates, mode=symdnn.Mode(target="cuda:sm_90"))
    count = 0

    def called(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        f.stages.specialise({"x": (3, 4)})
    finally:
        sys.setprofile(None)
    return count


def test_planning_is_linear():
    """Kernels and memory, with a view at each step."""
    planned(2)  # loads what is used at all
    assert planned(64) < 5 * planned(16)


WRITES = {
    "increments in turn": lambda x, n: by_turns(x[0], n),
    "slopes of rows": lambda x, n: T.grad(sum((T.sin(x[i]) * i).sum() for i in range(n)), x),
    "slopes of slices": lambda x, n: T.grad(
        sum((x[2 * i : 2 * i + 2] ** 2).sum() for i in range(n)), x
    ),
}


def by_turns(x, length):
    for i in range(length):
        x = T.inc_subtensor(x[i % 5], 1)
    return x


def python_calls(kind, length):
    """How many functions of Python are called to compile writes one after the other."""
    x, count = T.matrix("x"), 0

    def note(frame, event, arg):
        nonlocal count
        count += event == "call"

    y = WRITES[kind](x, length)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        symdnn.function([x], y)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", WRITES)
def test_compiling_many_writes_is_nearly_linear(kind):
    """For each write of a chain others are looked at, but nothing is built of them."""
    python_calls(kind, 10)
    assert python_calls(kind, 160) < 8 * python_calls(kind, 40)
