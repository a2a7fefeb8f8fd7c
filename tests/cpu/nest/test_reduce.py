"""Compiled reductions against NumPy's in float64: axes, layouts, dtypes, accuracy, threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest.infinities_ir import defined, hidden, unknown_infinities
from symdnn.cpu.nest.kernels import NestReduceKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.array.reduce import AllTrue, AnyTrue, Max, Min, Prod, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.monoid import extreme, total
from symdnn.ops.nest.nest import Fold
from tests.cpu.harness import call_of, compiled, launched, type_of
from tests.seeded import new_rng

pytestmark = compiled


def apply(op, *arrays):
    """The kernel's results."""
    results = op.output_types([type_of(a) for a in arrays])
    return launched(NestReduceKernel(), call_of(op, arrays, *results), arrays)


def laid_out(rng, shape, how):
    """A float32 array of this shape that lies in memory in one of several ways."""
    x = rng.normal(size=shape).astype("float32")
    if how == "turned":
        return np.ascontiguousarray(x.T).T
    if how == "backwards":
        return np.ascontiguousarray(x[::-1])[::-1]
    if how == "gaps":
        wide = np.empty((*shape[:-1], 2 * shape[-1]), "float32")
        wide[..., ::2] = x
        return wide[..., ::2]
    if how == "misaligned":
        raw = np.empty(x.nbytes + 1, "uint8")[1:]
        view = raw.view("float32").reshape(shape)
        view[...] = x
        return view
    if how == "repeated":
        return np.broadcast_to(x[..., :1], shape)
    return x


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_axes_of_arrays_that_lie_in_any_way(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))))
    hows = ["plain", "turned", "backwards", "gaps", "misaligned", "repeated"]
    how = data.draw(st.sampled_from(hows))
    keep = data.draw(st.booleans())
    x = laid_out(np.random.default_rng(data.draw(st.integers(0, 99))), shape, how)
    (total,) = apply(Sum(axes, keep, "float32", "float32"), x)
    exact = x.astype("float64")
    limit = np.abs(exact).sum(axes, keepdims=keep) * 2e-7
    assert np.all(np.abs(total - exact.sum(axes, keepdims=keep)) <= limit)
    (top,) = apply(Max(axes, keep), x)
    np.testing.assert_array_equal(top, x.max(axes, keepdims=keep))


BIG = [
    ((5000,), (0,)), ((300_001,), (0,)), ((3, 70_001), (1,)), ((3, 70_001), (0,)),
    ((20_000, 3), (0,)), ((700, 301), (0,)), ((2, 5, 9001), (0, 2)), ((40, 6, 31, 33), (0, 2, 3)),
    ((2, 50_000, 5), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), BIG)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", "bool"])
def test_long_reductions(rng, shape, axes, dtype):
    x = (rng.normal(size=shape) * 5).astype(dtype)
    acc = {"float16": "float32", "int32": "int64", "bool": "int64"}.get(dtype, dtype)
    exact = x.astype("float64")
    (total,) = apply(Sum(axes, False, acc, acc), x)
    limit = np.abs(exact).sum(axes) * (2e-7 if acc == "float32" else 5e-16)
    assert np.all(np.abs(total - exact.sum(axes)) <= limit + 1e-300)
    for op, function in ((Max, np.max), (Min, np.min), (AnyTrue, np.any), (AllTrue, np.all)):
        np.testing.assert_array_equal(apply(op(axes), x)[0], function(x, axes))


@pytest.mark.parametrize(("shape", "axes"), BIG)
def test_long_products(rng, shape, axes):
    near_one = (1 + rng.normal(size=shape) * 1e-4).astype("float32")
    (product,) = apply(Prod(axes, False, "float32", "float32"), near_one)
    np.testing.assert_allclose(product, near_one.astype("float64").prod(axes), rtol=2e-5)


def test_a_sum_is_better_than_one_after_the_other():
    x = np.full(10_000_000, 0.1, "float32")
    (total,) = apply(Sum((0,), False, "float32", "float32"), x)
    assert abs(float(total) - 0.1 * 1e7) <= 1 + 1e7 * abs(float(np.float32(0.1)) - 0.1)
    y = np.tile([1e16, 1.0, -1e16, 1.0], 5000)
    (total,) = apply(Sum((0,), False, "float64", "float64"), y)
    assert abs(float(total)) <= 1e5


@pytest.mark.parametrize("columns", [False, True])
def test_nan_and_infinities_come_out_as_numpy_has_them(columns):
    x = new_rng().normal(size=(6, 5000)).astype("float32")
    x[0, 17], x[1, 4999], x[2, 3], x[3, [5, 9]] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    if columns:
        x = np.ascontiguousarray(x.T).T
    with np.errstate(all="ignore"):
        for op, function in (
            (Sum((1,), False, "float32", "float32"), np.sum), (Max((1,)), np.max),
            (Min((1,)), np.min), (Sum((1,), False, "float64", "float64"), np.sum),
        ):  # fmt: skip
            wanted = function(x, 1)
            np.testing.assert_allclose(apply(op, x)[0], wanted, rtol=1e-3, atol=1e-3)


def test_several_reductions_of_programs_in_one_pass(rng):
    b = Builder(["float32", "float32", "int32"])
    x, y, n = (b.input(i) for i in range(3))
    program = b.program([x * y, b.call("exp", x), n, b.cast(n, "float32") + y])
    ops = (
        Sum((0, 2), False, "float32", "float32"), Max((0, 2)), Sum((0, 2), False, "int64", "int64"),
        Sum((0, 2), False, "float32", "float32"),
    )  # fmt: skip
    op = FusedReduce(program, ops)
    shapes = ((7, 5, 300), (1, 5, 1), (7, 1, 300))
    arrays = [(rng.normal(size=s) * 3).astype(d) for s, d in zip(shapes, program.inputs)]
    for turned in (False, True):
        if turned:
            arrays = [np.ascontiguousarray(a.transpose(0, 2, 1)).transpose(0, 2, 1) for a in arrays]
        wanted = op.reference(*[a.astype("float64") if a.dtype == "f" else a for a in arrays])
        for got, want in zip(apply(op, *arrays), wanted):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("shape", "axes"), BIG)
def test_bits_do_not_depend_on_threads(shape, axes):
    x = new_rng().normal(size=shape).astype("float32")
    found = []
    for count in (1, 2, 3, 7):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(apply(Sum(axes, False, "float32", "float32"), x)[0])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_what_has_no_elements_or_no_code_is_left_to_numpy():
    def refusal(op, dtype, shape):
        given = (TensorType(dtype, shape),)
        return NestReduceKernel().refuses(Call(op, given, (op.infer(*given),), NO_HINTS))

    assert "no elements" in refusal(Sum((0,), False, "float32", "float32"), "float32", (0, 3))
    assert "no code" in refusal(Sum((0,), False, "complex64", "complex64"), "float32", (3,))


def test_a_cost_is_one_kernel():
    x, y = T.fmatrices("x", "y")
    f = symdnn.function([x, y], T.sqr(x - y).sum(), mode=symdnn.Mode(target="cpu"))
    a, b = new_rng().normal(size=(2, 300, 300)).astype("float32")
    np.testing.assert_allclose(f(a, b), ((a - b).astype("float64") ** 2).sum(), rtol=1e-6)
    assert f.lowering_report().kernels() == {"llvm.nest": 1}


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 1, 2), (1, 2, 3), (0, 2), (3,), (1,)])
def test_dimensions_that_do_not_merge(axes, trusted):
    """Every second element along each axis: no two dimensions are one in memory."""
    x = T.ftensor4("x")
    seen = x if trusted else x[::2, ::2, ::2, ::2]
    f = symdnn.function(
        [x], [seen.sum(axis=axes), seen.max(axis=axes)], mode=symdnn.Mode(target="cpu")
    )
    f.trust_input = trusted
    whole = new_rng().normal(size=(38, 22, 30, 18)).astype("f")
    part = whole[::2, ::2, ::2, ::2]
    with config.change_flags({"cpu.compile": "always"}):
        total, most = f(part if trusted else whole)
    np.testing.assert_allclose(total, part.sum(axes, dtype="f8"), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(most, part.max(axes))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_elements_that_are_not_chosen_count_for_nothing(axes):
    m, x = T.tensor("bool", (None, None)), T.fmatrix("x")
    f = symdnn.function([m, x], T.switch(m, x, 0).sum(axis=axes), mode=symdnn.Mode(target="cpu"))
    rng = new_rng()
    chosen, values = rng.random((70, 37)) > 0.5, rng.normal(size=(70, 37)).astype("f")
    with config.change_flags({"cpu.compile": "always"}):
        found = f(chosen, np.where(chosen, values, np.nan).astype("f"))
    wanted = np.where(chosen, values, 0).sum(axes, dtype="f8")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_extremes_of_short_rows_and_what_is_no_number(dtype, rng):
    """A NaN at any place: in a vector, in what is left of it, alone."""
    x = T.TensorType(dtype, (None, None))("x")
    mode = symdnn.Mode(target="cpu")
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x], [x.max(1), x.min(1)], mode=mode)
        for n in (1, 13, 15, 16, 17, 33, 64, 96, 100, 255, 256, 257):
            a = (rng.normal(size=(n + 3, n)) * 100).astype(dtype)
            if a.dtype.kind == "f":
                a[np.arange(n), np.arange(n)] = np.nan
                a[n] = -np.inf
            for _ in range(2):
                most, least = f(a)
                np.testing.assert_array_equal(most, a.max(1))
                np.testing.assert_array_equal(least, a.min(1))


@pytest.mark.parametrize("seed", range(8))
def test_lines_of_booleans_end_where_the_answer_is(seed):
    """Also where the last block of a line overlaps the one before, and in steps of other axes."""
    rng = np.random.default_rng(seed)
    shape = (3, int(rng.integers(1, 5)), int(rng.integers(60, 400)))
    x = np.full(shape, seed % 2 == 0)
    at = rng.integers(0, shape[2], shape[:2])
    np.put_along_axis(x, at[..., None], seed % 2 == 1, 2)
    x[0] = seed % 4 < 2
    v = T.tensor("bool", (None, None, None))
    shown = x[::-1] if seed < 4 else x.transpose(1, 0, 2)
    for axis in (2, (1, 2), None):
        names = ("any", "all", "max", "min") + ("argmax", "argmin") * (axis != (1, 2))
        with config.change_flags(**{"cpu.compile": "always"}):
            f = symdnn.function([v], [getattr(T, n)(v, axis) for n in names])
        for name, found in zip(names, f(shown), strict=True):
            np.testing.assert_array_equal(found, getattr(np, name)(shown, axis))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64", "complex128"])
@pytest.mark.parametrize("columns", [2, 4, 8, 32])
@pytest.mark.parametrize("length", [31, 32, 130, 601, 5000])
def test_few_columns_beside_each_other(rng, dtype, columns, length):
    """Lines of all columns, whose lanes are few: rests of lanes, parts, chunks, a third axis."""
    x = T.tensor(dtype, (None,) * 3)
    twisted = x.type.is_complex
    outs = [x.sum(1), x.sum((0, 1)), x.mean(1)]
    outs += [] if twisted else [x.max(1), x.min((0, 1))]
    f = symdnn.function([x], outs)
    a = 9 * rng.normal(size=(7, length, columns))
    a = (a + 1j * rng.normal(size=a.shape) if twisted else a).astype(dtype)
    wide = a.astype("complex128" if twisted else "float64")
    want = [wide.sum(1), wide.sum((0, 1)), wide.mean(1)]
    want += [] if twisted else [a.max(1), a.min((0, 1))]
    for some in (a, a[:, ::-1]):
        for found, w in zip(f(some), want, strict=True):
            np.testing.assert_allclose(found, w, rtol=3e-6, atol=1e-5 * length)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "float64"])
@pytest.mark.parametrize("sizes", [(30, 4, 250), (16, 3, 17), (40, 2, 512), (9, 11, 13, 17, 19)])
def test_lanes_of_short_lines_meet_once(rng, dtype, sizes):
    """Sums and extremes over every second axis, NaN and all, and their bits for any threads."""
    axes = tuple(range(0, len(sizes), 2))
    a = (9 * rng.normal(size=sizes)).astype(dtype)
    if dtype != "int32":
        a[3, 1] = np.nan
    x = T.tensor(dtype, (None,) * a.ndim)
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count, "cpu.compile": "always"}):
            f = symdnn.function([x], [x.sum(axes), x.max(axes), (x * x).sum(axes), x.min(axes)])
            found.append([y.astype("float64") for y in f(a)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    wide = a.astype("int64" if dtype == "int32" else "float64")
    want = [wide.sum(axes), wide.max(axes), (wide * wide).sum(axes), wide.min(axes)]
    part = 2e-2 if dtype == "bfloat16" else 1e-6
    least = part * abs(np.nan_to_num(wide)).sum(axes).max()
    for got, w in zip(found[0], want, strict=True):
        np.testing.assert_allclose(got, w, rtol=part, atol=least)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_extremes_that_leave_out_nan(rng, axis, dtype):
    """What is left out counts as an infinity, of which the loop is not to know (as LLVM would)."""
    a = (9 * rng.normal(size=(37, 211))).astype(dtype)
    a[rng.random(a.shape) < 0.1] = np.nan
    a[3], a[:, 5] = -np.inf, np.inf
    masks = rng.random(a.shape) < 0.5
    x, m = T.tensor(dtype, (None,) * 2), T.tensor("bool", (None,) * 2)
    shown = [T.where(T.isnan(x), -np.inf, x).max(axis), T.where(T.isnan(x), np.inf, x).min(axis)]
    shown += [T.where(m, x, -np.inf).max(axis)]
    with config.change_flags(**{"cpu.compile": "always"}):
        found = symdnn.function([x, m], shown)(a, masks)
    wide = a.astype("float64")
    wanted = [np.where(np.isnan(wide), -np.inf, wide).max(axis)]
    wanted += [np.where(np.isnan(wide), np.inf, wide).min(axis)]
    wanted += [np.where(masks, wide, -np.inf).max(axis)]
    for got, w in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got.astype("float64"), w)


def test_the_loop_of_an_extreme_knows_no_infinity_of_a_choice():
    b = Builder(["float32"])
    chosen = b.input(0).call("isnan").where(-np.inf, b.input(0))
    unknown = unknown_infinities(Fold(b.program([chosen]), (extreme("max", *["float32"] * 3),)))
    lines = ["%a = select i1 %c, float 0xFFF0000000000000, float %x", "store float %a, ptr %p"]
    assert hidden(lines, unknown) == [lines[0].replace("0xFFF0000000000000", "%minus_inf_float"),
                                      lines[1]]  # fmt: skip
    assert any("%minus_inf_float = bitcast i32" in line for line in defined(unknown))
    assert not unknown_infinities(Fold(b.program([chosen]), (total("add", *["float32"] * 3),)))
