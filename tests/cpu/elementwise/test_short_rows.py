"""Rows of constant length: vectors of every length and kind of operand, groups of rows."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.elementwise_ir import elementwise_ir
from symdnn.cpu.ir.loops_ir import LoopOperand
from symdnn.ops.core.scalar import Builder
from tests.cpu.harness import compiled

pytestmark = compiled
LENGTHS = (1, 2, 4, 5, 7, 8, 12, 15, 16, 20, 29, 32, 33)
#: Programs that may have masks, and that may not: pairs, divisions of integers, calls.
PROGRAMS = {
    "mul": (lambda x, y: x * y, np.multiply, "float32"),
    "less": (lambda x, y: T.lt(x, y), np.less, "float32"),
    "exp": (lambda x, y: T.exp(x - y), lambda x, y: np.exp(x - y), "float64"),
    "bytes": (lambda x, y: x + y, np.add, "int8"),
    "narrow": (lambda x, y: x * y, np.multiply, "float16"),
    "wider": (lambda x, y: T.cast(x + y, "float64"), lambda x, y: (x + y).astype("d"), "float32"),
    "pairs": (lambda x, y: x * y, np.multiply, "complex64"),
    "quotient": (lambda x, y: x // y, np.floor_divide, "int32"),
    "gammaln": (lambda x, y: T.gammaln(x + y), None, "float32"),
}


def numbers(rng, dtype, shape):
    if dtype.startswith("int"):
        return rng.integers(1, 60, shape).astype(dtype)
    x = rng.uniform(0.5, 9, shape)
    return (x + 1j * rng.uniform(-1, 1, shape) if dtype[0] == "c" else x).astype(dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_all_lengths(rng, name):
    make, wanted, dtype = PROGRAMS[name]
    if wanted is None:
        import scipy.special

        wanted = lambda x, y: scipy.special.gammaln(x + y)  # noqa: E731
    x = T.TensorType(dtype, (None, None, None))("x")
    y = T.TensorType(dtype, (None, 1, None))("y")
    f = symdnn.function([x, y], make(x, y))
    for n in LENGTHS:
        a, b = numbers(rng, dtype, (7, 5, n)), numbers(rng, dtype, (7, 1, n))
        found, right = f(a, b), wanted(a, b)
        if right.dtype.kind in "fc":
            np.testing.assert_allclose(found, right, rtol=2e-3 if dtype == "float16" else 1e-6)
        else:
            assert np.array_equal(found, right)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(2, 3, 4, 7), (40, 31, 29, 16), (900, 7, 33), (5, 1, 3, 40)])
def test_threads_begin_and_end_within_groups_of_rows(rng, shape, count):
    some = (*(1 if d % 2 else None for d in range(len(shape) - 1)), None)
    others = (*(None if d % 2 else 1 for d in range(len(shape) - 1)), None)
    x, y = T.TensorType("float32", some)("x"), T.TensorType("float32", others)("y")
    a, b = (
        numbers(rng, "float32", [1 if d == 1 else n for d, n in zip(kinds, shape)])
        for kinds in (some, others)
    )
    with config.change_flags(**{"openmp.threads": count}):
        assert np.array_equal(symdnn.function([x, y], x * y)(a, b), a * b)


def test_rows_are_vectors(monkeypatch):
    b = Builder(["float32", "float32"])
    product = b.program([b.input(0) * b.input(1)])
    dense = LoopOperand("float32", "dense")

    def widths(length, lanes):
        monkeypatch.setattr(jit, "vector_width", lambda: lanes)
        text = elementwise_ir(product, (0, 5, length), (dense, dense), (dense,))
        masked = '"llvm.loop.vectorize.predicate.enable", i1 true' in text
        found = [line for line in text.splitlines() if "vectorize.width" in line]
        return (int(found[0].split("i32 ")[1].rstrip("}")) if found else 0), masked

    assert [widths(n, 16) for n in (3, 7, 12, 16, 29, 32)] == [
        (0, False), (8, True), (16, True), (16, False), (16, True), (16, False),
    ]  # fmt: skip
    assert [widths(n, 8) for n in (3, 7, 12, 16, 29, 32)] == [
        (0, False), (0, False), (4, False), (8, False), (0, False), (8, False),
    ]  # fmt: skip


def chain(x, y, count=12):
    """A long program: its rows have masks where a short one's have none."""
    for i in range(count):
        x = T.tanh(x * (1 + i / 100)) + T.exp(-y) * 0.1
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_numbers_of_a_long_program_have_the_same_bits_in_rows_of_all_lengths(rng, dtype):
    x, y = (T.TensorType(dtype, (None,))() for _ in range(2))
    f = symdnn.function([x, y], [chain(x, y), T.lt(chain(x, y, 11), x)])
    a, b = (numbers(rng, "float32", 300).astype(dtype) for _ in range(2))
    whole = f(a, b)
    for n in (1, 2, 15, 16, 17, 63, 64, 65, 127, 299):
        padded = [np.full(n + 1, 7, dtype) for _ in range(2)]
        for given, source in zip(padded, (a, b)):
            given[:n] = source[:n]
        for found, right in zip(f(padded[0][:n], padded[1][:n]), whole):
            assert np.array_equal(found, right[:n])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_share_rows_of_a_long_program(rng, count):
    x, y = T.fvector("x"), T.fvector("y")
    a, b = (numbers(rng, "float32", 40_011) for _ in range(2))
    whole = symdnn.function([x, y], chain(x, y))(a, b)
    with config.change_flags(**{"openmp.threads": count}):
        assert np.array_equal(symdnn.function([x, y], chain(x, y))(a, b), whole)


def test_long_programs_have_masks_in_rows_of_any_length(monkeypatch):
    def masked(count, name="tanh", lanes=16, kind="dense"):
        monkeypatch.setattr(jit, "vector_width", lambda: lanes)
        b = Builder(["float32"])
        value = b.input(0)
        for _ in range(count):
            value = value.call(name)
        x, y = LoopOperand("float32", kind), LoopOperand("float32", "dense")
        text = elementwise_ir(b.program([value]), (0,), (x,), (y,))
        return '"llvm.loop.vectorize.predicate.enable", i1 true' in text

    assert masked(6)
    assert not masked(3)
    assert not masked(6, "lgamma")  # a function that is not inlined
    assert not masked(6, lanes=8)
    assert not masked(6, kind="strided")
