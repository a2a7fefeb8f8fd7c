"""The shape rules of all ops, with symbols in place of sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.array.slices import slice_length
from symdnn.ops.core.shape import ShapeI, dims_of
from symdnn.ops.elementwise.arithmetic import Mul
from tests import op_table
from tests.op_table import of_each
from tests.op_table.record import OpCase
from tests.test_op_table import draw, outputs, variables

CASES = op_table.load()


def scalar() -> Variable:
    return TensorType("int64", ())()


def number(d, known) -> int:
    return int(evaluate([d], known)[0]) if isinstance(d, Variable) else int(d)


def symbols(v: Variable, value: np.ndarray, own: bool) -> tuple[tuple, dict[Variable, np.ndarray]]:
    """Sizes of ``v`` as symbols, and what is known of them: of a variable, or variables alone."""
    if not isinstance(v.type, TensorType):
        return (), {}
    if own:
        like = Variable(v.type)
        return dims_of(like), {like: value}
    dims = tuple(scalar() if d is None else d for d in v.type.shape)
    pairs = zip(dims, value.shape, strict=True)
    return dims, {d: np.int64(n) for d, n in pairs if isinstance(d, Variable)}


def compare(case: OpCase, own: bool) -> None:
    arrays = draw(case, 7)
    vs = variables(case, arrays)
    order = toposort(outputs(case, vs))
    everything = [v for node in order for v in (*node.inputs, *node.outputs)]
    values = dict(zip(everything, evaluate(everything, dict(zip(vs, arrays, strict=True)))))
    for node in order:
        given = [symbols(v, values[v], own) for v in node.inputs]
        known = {k: n for _, more in given for k, n in more.items()}
        host = {}
        for i in node.op.host_inputs:
            v = node.inputs[i]
            host[i] = int(v.data) if isinstance(v, Constant) else scalar()
            if isinstance(host[i], Variable):
                known[host[i]] = values[v]
        found = node.op.shapes([v.type for v in node.inputs], [dims for dims, _ in given], host)
        for v, shape in zip(node.outputs, found or ()):
            if isinstance(v.type, TensorType):
                assert tuple(number(d, known) for d in shape) == values[v].shape, node


@of_each(CASES)
def test_rules_give_real_shapes_from_sizes_of_variables(case: OpCase) -> None:
    compare(case, True)


@of_each(CASES)
def test_rules_give_real_shapes_from_sizes_alone(case: OpCase) -> None:
    compare(case, False)


BOUND = st.one_of(st.none(), st.integers(-7, 7))
STEP = st.one_of(st.none(), st.integers(-3, 3).filter(bool))


@given(st.integers(0, 6), BOUND, BOUND, STEP, st.lists(st.booleans(), min_size=4, max_size=4))
@settings(max_examples=400, deadline=None)
def test_slice_length_is_python_s(size, start, stop, step, symbolic):
    known: dict[Variable, np.ndarray] = {}

    def given_as(value, is_symbol):
        if value is None or not is_symbol:
            return value
        v = scalar()
        known[v] = np.int64(value)
        return v

    parts = [given_as(v, s) for v, s in zip((size, start, stop, step), symbolic, strict=True)]
    wanted = len(range(*slice(start, stop, step).indices(size)))
    assert number(slice_length(*parts), known) == wanted
    if symbolic[0]:  # the same with a size that is known not to be negative
        vector = TensorType("int8", (None,))()
        known[vector] = np.zeros(size, np.int8)
        length = slice_length(dims_of(vector)[0], *parts[1:])
        assert number(length, known) == wanted


def nodes(d) -> int:
    return len(toposort([d])) if isinstance(d, Variable) else 0


def test_slice_lengths_simplify():
    n = dims_of(TensorType("int8", (None,))())[0]
    assert slice_length(n, None, None, None) is n
    assert slice_length(n, 0, None, None) is n
    assert slice_length(n, None, None, -1) is n
    assert slice_length(n, None, n, None) is n
    assert nodes(slice_length(n, None, 3, None)) == 2  # min(n, 3)
    assert nodes(slice_length(n, -3, None, None)) == 2  # min(n, 3)
    assert nodes(slice_length(n, None, -3, None)) <= 3  # max(n - 3, 0)
    assert slice_length(10, 2, 100, 3) == 3


def test_a_minibatch_slice_is_clamped():
    data = TensorType("float32", (None, 5))()
    i, b = scalar(), scalar()
    out = data[i * b : (i + 1) * b]
    op = out.owner.op
    types = [v.type for v in out.owner.inputs]
    assert out.type.shape == (None, 5)
    for lo, hi, want in [(0, 32, 32), (96, 128, 4), (128, 160, 0)]:
        assert op.shapes(types, [(100, 5), (), ()], {1: lo, 2: hi}) == [(want, 5)]
    n = dims_of(data)[0]
    bounds = dict(enumerate(out.owner.inputs[1:], 1))
    (length, width) = op.shapes(types, [(n, 5), (), ()], bounds)[0]
    assert width == 5
    for step, want in [(0, 32), (3, 4), (4, 0)]:
        values = {i: np.int64(step), b: np.int64(32), data: np.zeros((100, 5), np.float32)}
        assert number(length, values) == want
    assert any(isinstance(node.op, Mul) for node in toposort([length]))
    assert any(isinstance(node.op, ShapeI) for node in toposort([length]))


def test_a_size_that_is_computed_from_constants_is_static():
    x = TensorType("float32", (None, 2, 6))()
    y = x.reshape((x.shape[0], x.shape[1] * 3, x.shape[2] // 3 + 0))
    assert y.type.shape == (None, 6, 2)
    assert x.reshape((x.shape[0] * 1, -1)).type.shape == (None, None)


def test_long_arithmetic_of_sizes_is_made_in_time_that_grows_with_it():
    """Each value is read once, although sums of a value with itself have 2**n paths to it."""
    n = T.constant(1, dtype="int64")
    for _ in range(20):
        n = n + n
    assert T.zeros((n,)).type.shape == (2**20,)
    n = T.lscalar()
    for _ in range(2000):
        n = n + n
    assert T.zeros((n,)).type.shape == (None,)
