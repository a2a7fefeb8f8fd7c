"""Marks in front of what is reduced: whether ranks have the same history."""

import functools

import numpy as np
import pytest

from symdnn.world.history import MARKS, History

DTYPES = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "float64", "complex64")
REDUCED = {
    "sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def histories(texts):
    found = [History(len(texts)) for _ in texts]
    for one, text in zip(found, texts):
        one.add("all_gather number 1")
        one.add(text)
    return found


def seen(dtype, op, texts):
    """For each rank whether it finds its marks as they would be if all ranks had the same."""
    all_of = histories(texts)
    marks = [one.mark(np.dtype(dtype), op) for one in all_of]
    assert {(m.size, m.dtype.name) for m in marks} == {(MARKS, dtype)}
    with np.errstate(all="raise"):
        total = functools.reduce(REDUCED[op], marks)
        return [np.array_equal(one.reduced(m, op), total) for one, m in zip(all_of, marks)]


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 8, 300])
def test_equal_histories_have_equal_marks(dtype, op, count):
    if (op in ("max", "min") and dtype.startswith("complex")) or (op == "mean" and "int" in dtype):
        return
    assert all(seen(dtype, op, ["broadcast(0)"] * count))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_rank_with_another_history_finds_other_marks(dtype, op, count):
    if op != "sum" and dtype.startswith("complex"):
        return
    for other in ("all_reduce(max) number 2", "broadcast(1)", ""):
        for rank in (0, count - 1):
            texts = ["broadcast(0)"] * count
            texts[rank] = other
            assert not all(seen(dtype, op, texts)), (dtype, op, other, rank)
    own = histories(["a", "b"])[0].mark(np.dtype(dtype), "sum")
    assert own.all(), "a rank whose peers send nothing finds its own"
