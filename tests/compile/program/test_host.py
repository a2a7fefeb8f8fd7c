"""The host program: Python ints give what the references give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.host import (
    HostProgram,
    is_number_function,
    is_scalar_arithmetic,
    scalar_function,
)
from symdnn.cpu.execution.runtime import runtime
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort

OPS = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a // b,
    lambda a, b: a % b, lambda a, b: -a, lambda a, b: abs(a), T.minimum, T.maximum,
    lambda a, b: T.switch(T.lt(a, b), a, b), lambda a, b: T.switch(T.eq(a, b), 1, b),
    lambda a, b: T.switch(T.ge(a, b), b, 0), lambda a, b: T.switch(T.neq(a, b) * T.gt(a, 1), a, 7),
    lambda a, b: T.cast(T.le(a, b), "int64"), lambda a, b: T.cast(a, "int32") + b,
    lambda a, b: T.cast(a, "int8"), lambda a, b: T.cast(b, "uint16") - T.cast(a, "uint8"),
]  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 9), st.integers(0, 9)),
             min_size=1, max_size=12),
    st.lists(st.integers(-5, 9), min_size=3, max_size=3),
    st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_python_ints_agree_with_references(choices, numbers, large):
    """What leaves a dtype wraps around. A function of the inputs alone gives the same."""
    inputs = [T.lscalar("i"), T.iscalar("j"), T.bscalar("k"), T.lscalar("l")]
    terms = [*inputs, T.constant(3)]
    for op, a, b in choices:
        terms.append(OPS[op](terms[a % len(terms)], terms[b % len(terms)]))
    given_ = {v: np.asarray(n, v.dtype) for v, n in zip(inputs, [*numbers, large])}
    nodes = toposort(terms)
    wanted = evaluate([v for n in nodes for v in n.outputs], given_)
    values = dict(given_)
    HostProgram(nodes, runtime())(values)
    for v, want in zip([v for n in nodes for v in n.outputs], wanted, strict=True):
        assert values[v] == want, v.owner
        assert values[v].dtype == want.dtype
        assert type(values[v]) is np.ndarray
    made = [v for n in nodes for v in n.outputs]
    function = scalar_function(nodes, inputs, made, made)
    if function is None:
        assert not all(map(is_scalar_arithmetic, nodes))
        return
    found = function(*(given_[v] for v in inputs))
    assert list(found[: len(made)]) == list(found[len(made) :]) == wanted
    assert [type(v) in (int, bool) for v in found[: len(made)]] == [True] * len(made)
    assert [v.dtype for v in found[len(made) :]] == [v.dtype for v in wanted]


def test_sizes_as_a_vector_are_one_function_of_the_arguments():
    x, k = T.ftensor3("x"), T.iscalar("k")
    sizes = T.stack([x.shape[0], x.shape[2] * k, k.astype("int64")])
    function = scalar_function(toposort([sizes]), [x, k], [], [sizes])
    first, second = (function(np.zeros((2, 3, 4), "f"), np.asarray(-5, "i"))[0] for _ in range(2))
    assert first.tolist() == second.tolist() == [2, -20, -5]
    assert first.dtype == "int64"
    assert not np.shares_memory(first, second)
    assert scalar_function(toposort([sizes]), [x], [], [sizes]) is None
    y = T.dscalar("y")
    assert scalar_function(toposort([y * 2]), [y], [], [y * 2]) is None


def test_what_python_ints_do_not_give_is_left_to_the_references():
    i, x, b = T.lscalar("i"), T.dscalar("x"), T.lvector("b")
    c = T.lt(i, 3)
    for v in (x + i, b + i, i / 2, T.cast(x, "int8"), c * c):
        assert not is_scalar_arithmetic(v.owner), v
    for v in (i + 1, c, i.zeros_like() + i, T.cast(i, "int8"), T.stack([i, i])):
        assert is_scalar_arithmetic(v.owner), v


@pytest.mark.parametrize("optimizer", ["None", "fast_run"])
def test_a_mixed_host_program(optimizer):
    x, v, i = T.dmatrix("x"), T.lvector("v"), T.lscalar("i")
    n = (v * 2).sum() // 3 + i
    f = symdnn.function(
        [x, v, i], [x[i : n * 2], T.zeros((n + 1, v[0])), n], mode=symdnn.Mode(optimizer=optimizer)
    )
    a = np.arange(20.0).reshape(10, 2)
    for vector, i_ in [([1, 2], 1), ([3, 6, 1], 0)]:
        count = sum(2 * k for k in vector) // 3 + i_
        part, zeros, got = f(a, vector, i_)
        np.testing.assert_array_equal(part, a[i_ : count * 2])
        assert zeros.shape == (count + 1, vector[0])
        assert got == count


FLOAT_OPS = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, T.sqrt, T.exp,
    lambda a, b: T.minimum(a, b), lambda a, b: T.maximum(a, b), lambda a, b: abs(a - b),
    lambda a, b: T.switch(T.lt(a, b), a, b), lambda a, b: T.switch(T.eq(a, b), 1, b),
    lambda a, b: T.cast(a, "float64"), lambda a, b: T.cast(b, "float32"), lambda a, b: a % b,
    lambda a, b: a**2 // b, lambda a, b: T.isnan(a), lambda a, b: T.gt(a, b) & T.le(b, 1.5),
    lambda a, b: T.log(a), lambda a, b: T.cast(T.floor(T.clip(a, -9, 9)), "int64") + 1,
]  # fmt: skip
ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, len(FLOAT_OPS) - 1), st.integers(0, 9), st.integers(0, 9)),
             min_size=1, max_size=12),
    st.lists(st.floats(-3, 3, width=32) | st.sampled_from(ODD), min_size=3, max_size=3),
)  # fmt: skip
def test_numbers_agree_with_references(choices, numbers):
    inputs = [T.fscalar("x"), T.dscalar("y"), T.fscalar("z")]
    terms = [*inputs, T.constant(np.float32(2.5)), T.iscalar("i")]
    for op, a, b in choices:
        op, args = FLOAT_OPS[op], (terms[a % len(terms)], terms[b % len(terms)])
        terms.append(op(*args) if op not in (T.sqrt, T.exp) else op(args[0]))
    given_ = {v: np.asarray(n, v.dtype) for v, n in zip(inputs, numbers)}
    given_[terms[4]] = np.asarray(-3, "int32")
    nodes = toposort(terms)
    wanted = evaluate([v for n in nodes for v in n.outputs], given_)
    values = dict(given_)
    HostProgram(nodes, runtime())(values)
    for v, want in zip([v for n in nodes for v in n.outputs], wanted, strict=True):
        np.testing.assert_array_equal(values[v], want, err_msg=str(v.owner))
        assert values[v].dtype == want.dtype
        assert type(values[v]) is np.ndarray


def test_numbers_of_a_condition_are_one_function():
    x = T.fscalar("x")
    near = abs(x * x - 2) > 1e-6 * x
    program = HostProgram(toposort([T.switch(near, 5, 0)]), runtime())
    assert len(program.steps) == 2  # of floats, and of ints
    narrow = T.scalar("h", dtype="float16")
    for v in (narrow + 1, T.cast(x, "int64"), T.fvector("v") + 1, T.cast(x, "bool")):
        assert not is_number_function(v.owner), v
