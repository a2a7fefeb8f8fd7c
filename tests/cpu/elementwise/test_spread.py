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
