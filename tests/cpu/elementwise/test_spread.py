"""Short rows of elementwise loops in which operands are the same: their numbers are repeated."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise import elementwise
from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.ir.loops_ir import LoopOperand
from symdnn.ops.core.scalar import Builder
from tests.cpu.harness import compiled

pytestmark = compiled

#: Shapes before the short axis, and which of these axes an operand has.
CASES = [((3000,), (0,)), ((70, 40), (0, 1)), ((70, 40), (1,)), ((70, 40), (0,)), ((1,), (0,)),
         ((5, 30, 11), (0, 2)), ((131,), (0,))]  # fmt: skip


def result(long, dtype, x, y):
    """What the program makes, by one thread and by several; the bits are the same."""
    b = Builder([dtype, dtype])
    value = b.input(0) - b.input(1)
    launch = elementwise_launch(b.program([value.call("exp") if long else value]), x.shape)
    outs = [np.full_like(x, 7) for _ in range(2)]
    for out, count in zip(outs, (1, 3), strict=True):
        with config.change_flags(**{"openmp.threads": count}):
            launch([x, y], [out])
    np.testing.assert_array_equal(*outs)
    return outs[0]


@pytest.mark.parametrize("length", [2, 5, 8, 16, 20, 33, 49, 63, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_in_which_an_operand_is_the_same(rng, length, dtype):
    for shape, axes in CASES:
        x = rng.normal(size=(*shape, length)).astype(dtype)
        y = rng.normal(size=[n if d in axes else 1 for d, n in enumerate(shape)]).astype(dtype)
        for long in (False, True):
            y_all = np.broadcast_to(y[..., None], x.shape)
            wanted = np.exp(x - y_all) if long else x - y_all
            np.testing.assert_allclose(result(long, dtype, x, y_all), wanted, 1e-5)
            out = result(long, dtype, y_all, np.asarray(x))
            np.testing.assert_allclose(out, np.exp(y_all - x) if long else y_all - x, 1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "uint8", "complex64", "complex128"])
def test_other_dtypes(rng, dtype):
    x, y = (rng.integers(0, 9, n).astype(dtype) for n in ((300, 13, 9), (300, 13, 1)))
    a, b = (T.TensorType(dtype, (None, None, 1 if v is y else None))() for v in (x, y))
    f = symdnn.function([a, b], [a * b, b + a])
    for _ in range(3):
        for found, wanted in zip(f(x, y), (x * y, x + y), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 7, 8, 12, 15, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_rows_with_gaps_between_them_where_the_program_is_long(rng, length, dtype):
    """Parts of wider matrices and of three-dimensional arrays, beside rows without gaps."""
    for shape in [(1300,), (1,), (70, 19)]:
        wide = rng.normal(size=(*shape, length + 3)).astype(dtype)
        x, y = wide[..., 3:], wide[..., :length]
        a, b = (T.TensorType(dtype, (None,) * x.ndim)() for _ in range(2))
        outputs = [T.exp(a) * T.tanh(b), T.exp(a) + b[..., :1]]
        f = symdnn.function([a, b], outputs)
        found = []
        for count in (1, 3):
            with config.change_flags(**{"openmp.threads": count, "cpu.compile": "always"}):
                found.append([r for _ in range(3) for r in f(x, y)][-2:])
        u, v = (w.astype("complex128" if dtype == "complex64" else "float64") for w in (x, y))
        wanted = np.exp(u) * np.tanh(v), np.exp(u) + v[..., :1]
        for one, three, want in zip(*found, wanted, strict=True):
            np.testing.assert_array_equal(one, three)
            near = 4e-3 if dtype == "float16" else 2e-5
            np.testing.assert_allclose(one, want, near, near)


@pytest.mark.parametrize("length", [2, 4, 5, 15])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_program_reads_rows_with_gaps_and_repeated_numbers(rng, length, dtype):
    for rows in (1, 16, 2000):
        x = rng.normal(size=(rows, length + 2)).astype(dtype)[:, 1:-1]
        y = np.broadcast_to(rng.normal(size=(rows, 1)).astype(dtype), x.shape)
        np.testing.assert_allclose(result(True, dtype, x, y), np.exp(x - y), 1e-5)


def test_which_rows_with_gaps_are_one():
    b = Builder(["float32"])
    long, short = b.program([b.input(0).call("tanh")]), b.program([b.input(0) * 2])
    kinds = [LoopOperand("float32", "dense")] * 2

    def of(program, n, gaps=(1, 0)):
        steps = [(4 * (n + gap), 4) for gap in gaps]
        found = elementwise._spread(program, (30, n), steps, kinds)
        return found and (found[0], found[1][0], found[2][0].inner)

    assert of(long, 4) == ((120,), (20,), "rows 4")
    assert of(short, 4) is None
    assert of(long, 16) is None
    assert of(long, 4, (1, 1)) is None


def test_which_rows_are_one():
    b = Builder(["float32", "float32"])
    program = b.program([b.input(0) * b.input(1)])

    def of(n, second, gap=0, count=30):
        kinds = [LoopOperand("float32", k) for k in ("dense", second, "dense")]
        steps = [(4 * (n + gap), 4), (4, 0) if second == "one" else (4 * n, 4), (4 * n, 4)]
        found = elementwise._spread(program, (count, n), steps, kinds)
        return found and (found[0], found[1][1], found[2][1].inner)

    assert of(20, "one") == ((600,), (4,), "spread 20")
    assert of(20, "one", gap=1) is None
    assert of(64, "one") is None
    assert of(4, "one") is None
    assert elementwise._spread(program, (20,), [(4,), (0,), (4,)], []) is None
