from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symdnn
from symdnn.autodiff import grad
from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import as_variable
from symdnn.ops.core.shape import DimShuffle, Reshape, dims_of
from symdnn.ops.linalg.dot import (
    BatchedDot,
    Dot,
    MatchSizes,
    batched_dot,
    batched_tensordot,
    dot,
    matmul,
    outer,
    tensordot,
)
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.linalg.linalg import kron, matrix_dot


def tensor(*shape, dtype="float32"):
    return TensorType(dtype, shape)()


def ops_of(v) -> list[type]:
    return [type(node.op) for node in toposort([v])]


def products(v) -> list[type]:
    return [op for op in ops_of(v) if op in (Dot, BatchedDot)]


# -- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ("int8", "int8", "int8"), ("int32", "float32", "float64"), ("int8", "float32", "float32"),
        ("float32", "float64", "float64"), ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"), ("float32", "complex64", "complex64"),
        ("bool", "bool", "bool"),
    ],
)  # fmt: skip
def test_dtype_is_the_upcast(left, right, out) -> None:
    assert dot(tensor(2, 3, dtype=left), tensor(3, 2, dtype=right)).type.dtype == out
    assert matmul(tensor(4, 2, 3, dtype=left), tensor(4, 3, 2, dtype=right)).type.dtype == out


def test_static_shapes() -> None:
    assert dot(tensor(2, None), tensor(3, 4)).type.shape == (2, 4)
    assert dot(tensor(2, 5, 3), tensor(7, 3, 4)).type.shape == (2, 5, 7, 4)
    assert dot(tensor(2, 5, None), tensor(3)).type.shape == (2, 5)
    assert matmul(tensor(None, 2, 3), tensor(6, 3, 4)).type.shape == (6, 2, 4)
    assert matmul(tensor(1, 2, 3), tensor(None, 3, 4)).type.shape == (None, 2, 4)
    assert tensordot(tensor(2, None, 3), tensor(5, 3, 4)).type.shape == (2, 4)
    assert einsum("bij,bjk->kib", tensor(2, 3, None), tensor(None, 4, 5)).type.shape == (5, 3, 2)
    assert kron(tensor(2, 3), tensor(4, 5)).type.shape == (8, 15)


@pytest.mark.parametrize("sizes", [(None, None), (None, 3), (2, None)])
def test_stacks_whose_sizes_only_multiply_to_the_same_number_are_refused(sizes) -> None:
    x, y = tensor(*sizes, 5, 4), tensor(None, None, 4, 6)
    a, b = (np.ones((n, m, *s), "float32") for n, m, s in ((2, 3, (5, 4)), (3, 2, (4, 6))))
    product = symdnn.function([x, y], matmul(x, y))
    assert product(a, np.ones((2, 3, 4, 6), "float32")).shape == (2, 3, 5, 6)
    with pytest.raises(ShapeMismatch, match="dimension 0"):
        product(a, b)


def test_half_floats_are_accumulated_in_float32() -> None:
    x = np.full((1, 4096), 1, "float16")
    (y,) = evaluate([dot(x, np.full((4096, 1), 1, "float16"))], {})
    assert y == 4096  # in float16 the sum stops at 2048


def test_operators_and_methods() -> None:
    x, y = tensor(2, 3), tensor(3, 4)
    assert isinstance((x @ y).owner.op, Dot)
    assert isinstance(x.dot(y).owner.op, Dot)
    assert isinstance((np.ones((5, 2), "float32") @ x).owner.op, Dot)


# -- which ops ------------------------------------------------------------------------------------


def test_products_are_lowered_to_few_ops() -> None:
    m = tensor(None, None)
    assert ops_of(dot(m, m)) == [Dot]
    assert ops_of(matmul(tensor(4, 5, 2, 3), tensor(3, 4))) == [Reshape, Dot, Reshape]
    assert ops_of(matmul(tensor(4, 2, 3), tensor(4, 3, 4))) == [BatchedDot]
    assert ops_of(matmul(tensor(2, 3), tensor(4, 3, 4))) == [DimShuffle, BatchedDot]
    assert ops_of(einsum("ij,kj->ik", m, m)) == [DimShuffle, Dot]
    assert products(einsum("bhqd,bhkd->bhqk", tensor(2, 3, 4, 5), tensor(2, 3, 6, 5))) == [
        BatchedDot
    ]
    assert products(einsum("i,i->i", tensor(3), tensor(3))) == []


def test_gradients_are_products_too() -> None:
    x, w = tensor(None, 3), tensor(3, 4)
    gx, gw = grad(dot(x, w).sum(), [x, w])
    assert isinstance(gx.owner.op, Dot)
    assert isinstance(gw.owner.op, Dot)
    a, b = tensor(1, 2, 3), tensor(None, 3, 4)
    ga, _ = grad(BatchedDot()(a, b).sum(), [a, b])
    assert ga.type.shape == (1, 2, 3)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((2, 3), (3,)), ((3,), (3,)),
                                    ((2, 2, 3), (2, 3, 1))])  # fmt: skip
def test_gradients_of_complex_products(shapes) -> None:
    """d/dRe + i d/dIm of a real cost, by differences."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in shapes)
    x, y = (TensorType("complex128", (None,) * v.ndim)() for v in (a, b))
    cost = (matmul(x, y) * (1 + 2j)).real.sum()
    found = evaluate(grad(cost, [x, y]), {x: a, y: b})
    index = (0,) * a.ndim
    for step in (1e-6, 1e-6j):
        up, down = a.copy(), a.copy()
        up[index] += step
        down[index] -= step
        sides = [evaluate([cost], {x: v, y: b})[0] for v in (up, down)]
        part = found[0][index].real if step == 1e-6 else found[0][index].imag
        assert np.isclose((sides[0] - sides[1]) / 2e-6, part, rtol=1e-5)


def test_einsum_takes_numbers_of_letters() -> None:
    """NumPy's other form; an implicit output is in the order of the numbers."""
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    x, y = tensor(None, None, dtype="float64"), tensor(None, None, dtype="float64")
    for rest in ([], [[2, 0]], [[]], [(2, 1, 0)]):
        (value,) = evaluate([einsum(x, [0, 1], y, (1, 2), *rest)], {x: a, y: b})
        np.testing.assert_allclose(value, np.einsum(a, [0, 1], b, [1, 2], *rest))
    for first, second in [([26, 25], [25, 3]), ([..., 1], [1, 51])]:
        (value,) = evaluate([einsum(x, first, y, second)], {x: a, y: b})
        np.testing.assert_allclose(value, np.einsum(a, first, b, second))
    for bad in ([0, -1], [0, 52], ["a", "b"], 3, y):
        with pytest.raises(TypeMismatch, match="a list of numbers below 52"):
            einsum(x, bad)
    with pytest.raises(TypeMismatch, match="one letter for each dimension"):
        einsum(x, [0, 1, 2])


def test_einsum_takes_opt_einsums_order() -> None:
    a, b, c = tensor(100, 2), tensor(2, 100), tensor(100, 3)
    out = einsum("ij,jk,kl->il", a, b, c)
    shapes = [n.outputs[0].type.shape for n in toposort([out]) if isinstance(n.op, Dot)]
    assert (2, 3) in shapes  # b c first
    left = einsum("ij,jk,kl->il", a, b, c, optimize=False)
    shapes = [n.outputs[0].type.shape for n in toposort([left]) if isinstance(n.op, Dot)]
    assert (100, 100) in shapes


# -- what is refused ------------------------------------------------------------------------------


def test_errors_name_both_shapes() -> None:
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\) and \(4, 5\)"):
        dot(tensor(2, 3), tensor(4, 5))
    with pytest.raises(ShapeMismatch, match=r"\(6, 2, 3\) and \(6, 4, 5\)"):
        BatchedDot()(tensor(6, 2, 3), tensor(6, 4, 5))
    with pytest.raises(ShapeMismatch, match="leading dimensions"):
        matmul(tensor(2, 2, 3), tensor(5, 3, 4))
    with pytest.raises(ShapeMismatch, match="dimension 2 of a and 1 of b"):
        tensordot(tensor(2, 3, 4), tensor(3, 5, 4))
    with pytest.raises(ShapeMismatch, match="one size for 'j'"):
        einsum("ij,jk", tensor(2, 3), tensor(4, 5))


def test_errors_at_run_time() -> None:
    x, y = tensor(None, None), tensor(None, None)
    with pytest.raises(ShapeMismatch):
        Dot().shapes([x.type, y.type], [(2, 3), (4, 5)], {})
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\) and \(4, 5\)"):
        evaluate([dot(x, y)], {x: np.ones((2, 3), "float32"), y: np.ones((4, 5), "float32")})


def test_contractions_over_several_dimensions_check_each() -> None:
    x, y = tensor(None, None, None), tensor(None, None, None)
    out = tensordot(x, y, 2)
    assert MatchSizes in ops_of(out)
    with pytest.raises(ShapeMismatch, match="equal to dimension"):
        evaluate([out], {x: np.ones((4, 2, 3), "float32"), y: np.ones((3, 2, 5), "float32")})
    assert MatchSizes not in ops_of(tensordot(tensor(4, 2, 3), tensor(2, 3, 5), 2))


def test_a_stack_of_one_broadcasts_only_if_that_is_static() -> None:
    x, y = tensor(None, 2, 3), tensor(None, 3, 4)
    with pytest.raises(ShapeMismatch, match="static 1"):
        BatchedDot().shapes([x.type, y.type], [(1, 2, 3), (5, 3, 4)], {})
    assert BatchedDot().shapes(
        [tensor(1, 2, 3).type, y.type], [(1, 2, 3), (5, 3, 4)], {}
    ) == [(5, 2, 4)]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: matmul(2.0, tensor(2, 3)), "no scalars"),
        (lambda: batched_dot(2.0, tensor(2, 3)), "at least one dimension"),
        (lambda: tensordot(tensor(2, 3), tensor(3, 2), 3), "axes between"),
        (lambda: tensordot(tensor(2, 3), tensor(3, 2), [[1], [2]]), "axis of"),
        (lambda: tensordot(tensor(2, 3), tensor(3, 2), [[0, 1], [0]]), "as many axes"),
        (lambda: tensordot(tensor(2, 3), tensor(3, 2), [[1, 1], [0, 0]]), "each axis once"),
        (lambda: tensordot(tensor(2, 3), tensor(3, 2), "ab"), "number or a pair"),
        (lambda: batched_tensordot(tensor(2, 3), tensor(2, 3), [[0], [0]]), "shared dimension"),
        (lambda: einsum("ij,jk", tensor(2, 3)), "einsum"),
        (lambda: einsum("ijk", tensor(2, 3)), "einsum"),
        (lambda: einsum("ij->ijk", tensor(2, 3)), "einsum"),
        (lambda: einsum("ij->ii", tensor(2, 2)), "einsum"),
        (lambda: einsum("ij"), "at least one operand"),
        (lambda: matrix_dot(), "at least one matrix"),
        (lambda: Dot()(tensor(2, 3), tensor(3, 2, dtype="float64")), "one dtype"),
        (lambda: Dot()(tensor(2, 3, 4), tensor(4, 2)), "vectors or matrices"),
    ],
)
def test_what_is_refused(build, text) -> None:
    with pytest.raises(TypeMismatch, match=text):
        build()


def test_more_than_a_vector_is_flattened_for_outer() -> None:
    assert outer(tensor(2, 3), tensor(4)).type.shape == (6, 4)


# -- any shapes -----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_einsum_of_any_letters(data) -> None:
    letters = "abcd"
    sizes = dict(zip(letters, (2, 3, 1, 2), strict=True))
    some = st.lists(st.sampled_from(letters), min_size=1, max_size=3, unique=True)
    terms = data.draw(st.lists(some, min_size=1, max_size=3))
    used = sorted({c for t in terms for c in t})
    out = data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))]
    equation = ",".join("".join(t) for t in terms) + "->" + "".join(out)
    arrays = [np.random.default_rng(i).standard_normal([sizes[c] for c in t])
              for i, t in enumerate(terms)]  # fmt: skip
    vs = [TensorType("float64", (None,) * a.ndim)() for a in arrays]
    given = dict(zip(vs, arrays, strict=True))
    (value,) = evaluate([einsum(equation, *vs)], given)
    np.testing.assert_allclose(value, np.einsum(equation, *arrays), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([dot, matmul]))
def test_symbolic_shapes_of_any_rank(m, n, build) -> None:
    a = np.random.default_rng(0).standard_normal((5, 4, 2, 3)[4 - m :])
    b = np.random.default_rng(1).standard_normal((*((5, 4, 3, 2)[4 - n :] if n > 1 else (3,)),))
    x, y = (TensorType("float64", (None,) * v.ndim)() for v in (a, b))
    out = build(x, y)
    given = {x: a, y: b}
    expected = {dot: np.dot, matmul: np.matmul}[build](a, b)
    np.testing.assert_allclose(evaluate([out], given)[0], expected, atol=1e-12)
    for node in toposort([out]):
        if isinstance(node.op, Dot | BatchedDot):
            (dims,) = node.op.shapes(
                [i.type for i in node.inputs], [dims_of(i) for i in node.inputs], {}
            )
            found = [int(d) for d in evaluate([as_variable(d) for d in dims], given)]
            assert tuple(found) == evaluate(node.outputs, given)[0].shape


def test_rows_by_columns_with_one_term_do_not_broadcast():
    """Sums of products stand for them, which would."""
    x, y = TensorType("float32", (None, 1, 1))(), TensorType("float32", (None, None, 1))()
    f = symdnn.function([x, y], batched_dot(x, y))
    with pytest.raises(ShapeMismatch):
        f(np.ones((3, 1, 1), "float32"), np.ones((3, 5, 1), "float32"))
