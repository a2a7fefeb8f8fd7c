"""Counts whose number is known: no host asks for the largest of the numbers."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import AssertionFailed
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.opt.canonicalize import counts
from symdnn.opt.canonicalize.counts import _of_node, bounds_of

GPU = symdnn.Mode(target="cuda:sm_90")


def compiled(inputs, made):
    f = symdnn.function(inputs, made, mode=GPU)
    ops = [type(n.op).__name__ for n in f.fgraph.toposort()]
    outs = f.fgraph.outputs
    return ops, lambda *given: evaluate(outs, dict(zip(f.fgraph.inputs, given, strict=True)))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_first_counts(dtype, weighted):
    """With larger numbers, without any, and with none at all."""
    x, w = T.TensorType(dtype, (None,))("x"), T.dvector("w")
    made = T.bincount(x, w if weighted else None, minlength=6)[:5]
    ops, f = compiled([x, w] if weighted else [x], made)
    assert ops.count("HostFromGpu") == 1  # the result's
    rng = np.random.default_rng(3)
    for size, high in ((0, 1), (1, 9), (200, 4), (200, 90)):
        some = rng.integers(0, 2 if dtype == "bool" else high, size).astype(dtype)
        given = [some, rng.standard_normal(size)][: 1 + weighted]
        want = np.bincount(some.astype("int64"), *given[1:], minlength=6)[:5]
        np.testing.assert_allclose(f(*given)[0], want, atol=1e-12)


@pytest.mark.parametrize("part", ["-3:5", "-20:5", "i:5", "2:5", "0:6:1", "4:2"])
def test_parts_of_counts(part):
    """Those from a place counted from the end begin where the number of counts says."""
    x, i = T.lvector("x"), T.lscalar("i")
    made = eval(f"T.bincount(x, minlength=6)[{part}]", {"T": T, "x": x, "i": i})
    ops, f = compiled([x, i] if "i" in part else [x], made)
    known = part[0] in "024"
    assert ("Max" in ops) is not known  # of the numbers
    some = np.array([3, 9, 2, 20, 5])
    want = eval(f"n[{part}]", {"n": np.bincount(some, minlength=6), "i": 1})
    np.testing.assert_array_equal(f(some, *[np.int64(1)][: "i" in part])[0], want)


def test_counts_in_rows_stay():
    """The first rows of a matrix that is as wide as there are counts."""
    x = T.lvector("x")
    rows = T.zeros((4, T.bincount(x, minlength=6).shape[0]))
    _, f = compiled([x], T.inc_subtensor(rows[x], 1.0)[:4])
    assert f(np.array([1, 3, 2]))[0].shape == (4, 6)


def test_negative_numbers_are_an_error():
    x = T.lvector("x")
    _, f = compiled([x], T.bincount(x, minlength=6)[:6])
    with pytest.raises(AssertionFailed, match="integers of 0 or more"):
        f(np.array([3, -1, 2]))


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("x % 6", True), ("x % 7", False), ("-(x % 3)", False), ("T.clip(x, 0, 5)", True),
        ("T.clip(x, -1, 5)", False), ("x", False), ("T.maximum(T.minimum(x, 5), 0)", True),
        ("T.argmax(m, 1)", True), ("T.argmax(m, 1) + 1", False), ("2 * T.argmin(n, 1) + 1", True),
        ("(x % 12) // 2", True), ("5 - x % 6", True), ("T.eq(x, 1) * 5", True),
        ("u // 43", True), ("u // 42", False), ("T.argmax(a, 1)", False),
    ],
)  # fmt: skip
def test_known_number_of_counts(text, known):
    """By what the numbers are computed of."""
    names = {
        "x": T.lvector("x"), "m": T.TensorType("float32", (None, 6))("m"), "a": T.fmatrix("a"),
        "n": T.TensorType("float32", (None, 3))("n"), "u": T.TensorType("uint8", (None,))("u"),
    }  # fmt: skip
    numbers = eval(text, {"T": T, **names})
    fgraph = symdnn.function(
        list(names.values()), T.bincount(numbers, minlength=6), mode=GPU, on_unused_input="ignore"
    ).fgraph
    counted = next(n for n in fgraph.toposort() if isinstance(n.op, AdvancedIncSubtensor))
    assert counted.inputs[0].type.shape == ((6,) if known else (None,))


def test_bounds_hold():
    """Whatever integers the operands have, also where arithmetic wraps."""
    x, y = T.TensorType("int8", (None,))("x"), T.TensorType("int8", (None,))("y")
    every = np.arange(-128, 128, dtype="int8")
    a, b = (v.ravel() for v in np.meshgrid(every, every))
    a, b = a.astype("int8"), b.astype("int8")
    small = T.clip(y, -3, 4)
    for made in (
        x + y, x - y, x * y, small * 3 - 2, small * small, x // 5, x % 5, (x % 5) * (y % 7),
        T.maximum(x, small), T.minimum(small, y % 9), T.clip(x, y % 4, 6), small.astype("uint8"),
        (x % 4).astype("int64") * 100, T.clip(x, 3, -3),
    ):  # fmt: skip
        low, high = bounds_of(made)
        found = symdnn.function([x, y], made, on_unused_input="ignore")(a, b)
        assert low <= found.min(), made
        assert found.max() <= high, made


def test_what_is_read_again_is_followed_once(monkeypatch):
    seen = []
    monkeypatch.setattr(counts, "_of_node", lambda n, b: seen.append(n) or _of_node(n, b))
    v = T.ivector("v") % 2
    for _ in range(11):
        v = v + v
    low, high = bounds_of(v)
    assert (low, high) == (0, 2048)
    assert len(seen) == 12


def test_a_sum_by_counts_has_a_gradient():
    """The gradient of the weights, which the first counts read."""
    x, w = T.lvector("x"), T.dvector("w")
    slope = symdnn.grad((T.bincount(x, w, minlength=4)[:3] ** 2).sum(), w)
    _, f = compiled([x, w], slope)
    given, weights = np.array([0, 2, 7, 2]), np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(f(given, weights)[0], [2.0, 12.0, 0.0, 12.0])
