"""Short sums of broadcast operands are elementwise on a GPU, where that costs little; reductions of
a stack are elementwise everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.join import Join
from symdnn.ops.array.reduce import Sum
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.lowered.lowered import neutral_of
from tests.seeded import new_rng

GPU = symdnn.Mode(target="cuda:sm_90")
RULE = "short_sum_of_a_broadcast"

PROGRAMS = {
    "squares": lambda a, b, w: (a - b) ** 2,
    "weighted": lambda a, b, w: w * T.abs(a - b),
    "products": lambda a, b, w: a * b,
    "two ways": lambda a, b, w: (a - b) * (a - b) * T.minimum(a, b),
}


def reduced(f):
    """The axes of each node's sums."""
    found = []
    for node in f.fgraph.toposort():
        op = neutral_of(node.op)
        parts = op.reductions if isinstance(op, FusedReduce) else [op]
        found += [p.axes for p in parts if isinstance(p, Sum)]
    return found


def both(inputs, outputs, given):
    """The function, and its results with the rule and without."""
    found = []
    for mode in (GPU.excluding(RULE), GPU):
        f = symdnn.function(inputs, outputs, mode=mode, on_unused_input="ignore")
        found.append(evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, given, strict=True))))
    return f, found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("terms", [2, 3, 4, 5])
@pytest.mark.parametrize("keeps", [False, True])
def test_values(name, terms, keeps):
    """Of each axis and dtype; sums of five terms stay."""
    rng = new_rng()
    for axis, dtype in ((0, "float32"), (1, "float64"), (2, "float32")):
        shapes = [[None, 1], [1, None], [1, 1]]
        for s, size in zip(shapes, (terms, terms, terms)):
            s.insert(axis, size)
        variables = [T.TensorType(dtype, tuple(s))() for s in shapes]
        given = [rng.normal(size=[d or n for d in s]).astype(dtype)
                 for s, n in zip(shapes, (9, 11, 1))]  # fmt: skip
        total = T.sum(PROGRAMS[name](*variables), axis=axis, keepdims=keeps)
        f, (want, got) = both(variables, [total], given)
        np.testing.assert_allclose(got[0], want[0], 1e-5 if dtype == "float32" else 1e-12, 1e-6)
        assert got[0].dtype == want[0].dtype
        assert ((axis,) in reduced(f)) == (terms == 5)


def test_distances_and_gradients_store_no_pairs():
    """Chamfer's distance: the minima compute what they compare, and so does the gradient."""
    x, y = (T.TensorType("float32", (2, 100, 3))() for _ in range(2))
    far = T.sum((x[:, :, None, :] - y[:, None, :, :]) ** 2, axis=3)
    loss = far.min(2).mean() + far.min(1).mean()
    rng = new_rng()
    given = [rng.normal(size=(2, 100, 3)).astype("float32") for _ in range(2)]
    f, (want, got) = both([x, y], [loss, *symdnn.grad(loss, [x, y])], given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-7)
    assert (3,) not in reduced(f)


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: (a[:, None] * b[None]) * T.ones((40, 50, 3)).cumsum(2),
        lambda a, b: T.exp(a[:, None] - b[None]),
        lambda a, b: T.concatenate([a, a])[:40] ** 2 + 0 * b[:40],
    ],
    ids=["a whole operand", "dear", "no broadcast"],
)
def test_other_sums_stay(build):
    a, b = T.TensorType("float32", (40, 3))(), T.TensorType("float32", (50, 3))()
    made = build(a, b)
    f = symdnn.function([a, b], made.sum(made.ndim - 1), mode=GPU)
    assert (made.ndim - 1,) in reduced(f)


def test_operands_of_unknown_sizes_stay():
    """A longer one is an error, of which its first elements would say nothing."""
    a, b = T.TensorType("float32", (40, 1, None))(), T.TensorType("float32", (1, 50, 3))()
    f = symdnn.function([a, b], ((a - b) ** 2).sum(2), mode=GPU)
    assert (2,) in reduced(f)
    given = dict(zip(f.fgraph.inputs, (np.ones((40, 1, 4), "f"), np.ones((1, 50, 3), "f"))))
    with pytest.raises(ValueError, match="shape"):
        evaluate(f.fgraph.outputs, given)


def test_whole_numbers_and_16_bits_stay():
    """Their sums have another dtype, or are rounded once."""
    for dtype in ("int32", "bfloat16"):
        a, b = T.TensorType(dtype, (40, 1, 3))(), T.TensorType(dtype, (1, 50, 3))()
        f = symdnn.function([a, b], (a * b).sum(2), mode=GPU)
        assert (2,) in reduced(f)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int64", "float32", "float64"]
)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("how", ["sum", "max", "min", "all", "any", "mean"])
def test_reductions_of_a_stack_are_elementwise(how, axis, dtype):
    """Values and dtypes are NumPy's, of the largest numbers, too; no stack is made."""
    rng = new_rng()
    x, y = (T.TensorType(dtype, (None, 5))() for _ in range(2))
    given = [rng.integers(0, 2, size=(4, 5)).astype(dtype) * _largest(dtype) for _ in range(2)]
    parts = [x, y, T.maximum(x, y), x & y if dtype == "bool" else x]
    kept = how in ("max", "sum")
    total = getattr(T.stack(parts, axis), how)(axis, keepdims=kept)
    f = symdnn.function([x, y], total, mode=symdnn.Mode(target="cpu"))
    a, b = given
    stacked = np.stack([a, b, np.maximum(a, b), a & b if dtype == "bool" else a], axis)
    want = getattr(stacked, how)(axis, keepdims=kept)
    got = f(*given)
    assert got.shape == want.shape
    assert got.dtype == total.dtype
    np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), 1e-6)
    ops = [neutral_of(n.op) for n in f.fgraph.toposort()]
    assert not any(isinstance(op, Join | FusedReduce | Sum) for op in ops), ops


def _largest(dtype):
    kind = np.dtype(dtype).kind
    return dtype == "bool" or (np.iinfo(dtype).max if kind in "iu" else np.dtype(dtype).type(0.1))


def test_a_stack_of_float32_is_added_in_float64():
    x = T.fvector()
    f = symdnn.function([x], T.stack([x, x * 0 + 1, -x]).sum(0), mode=symdnn.Mode(target="cpu"))
    np.testing.assert_array_equal(f(np.full(20, 1e8, "f")), 1)


def test_stacks_that_others_read_and_joins_of_longer_parts_stay():
    x = T.fmatrix()
    mode = symdnn.Mode(target="cpu")
    stack = T.stack([x, x + 1])
    for made in ([stack, stack.sum(0)], [T.concatenate([x, x * 2]).sum(0)], [stack.sum(1)]):
        ops = [neutral_of(n.op) for n in symdnn.function([x], made, mode=mode).fgraph.toposort()]
        assert any(isinstance(op, Sum | FusedReduce) for op in ops)
