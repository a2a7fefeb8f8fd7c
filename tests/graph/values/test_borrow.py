"""Whether a user still has the memory of a shared variable."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.values.storage import Storage


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 6)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "float16", ml_dtypes.bfloat16])
def test_a_lent_array_is_the_value_until_its_last_view_is_gone(shape, dtype) -> None:
    storage = Storage(np.ones(shape, dtype))
    before = storage.version
    mine = storage.get(borrow=True)
    assert (mine.dtype, mine.shape, mine.flags.writeable) == (np.dtype(dtype), shape, True)
    assert storage.version is None
    mine[...] = 0
    assert not storage.get().any()
    assert storage.get(borrow=True) is mine
    part = mine[..., None]
    del mine
    assert storage.version is None, "a view of it is left"
    part[...] = 1
    del part
    after = storage.version
    assert after not in (None, before), "it was written"
    assert storage.get().all()
    assert storage.version == after


def test_a_write_while_nobody_looked_changes_the_version() -> None:
    storage = Storage(np.zeros(3))
    before = storage.version
    storage.get(borrow=True)[:] = 2
    assert storage.version not in (None, before)


def test_a_buffer_of_a_lent_array_counts() -> None:
    storage = Storage(np.zeros(3))
    buffer = memoryview(storage.data)
    assert storage.version is None
    del buffer
    assert storage.version is not None


def test_a_given_array_is_used_itself_and_free_once_nobody_has_it() -> None:
    array = np.zeros((2, 3), np.float32)
    storage = Storage(array, borrow=True)
    inside = storage.host()
    assert np.shares_memory(array, inside)
    assert storage.get(borrow=True) is array
    assert storage.version is None
    part = array[1]
    del array
    assert storage.version is None
    part[:] = 4
    del part
    first = storage.version
    assert first is not None
    assert storage.get()[1].tolist() == [4, 4, 4]
    again = storage.get(borrow=True)
    assert storage.version is None
    del again
    assert storage.version not in (None, first)


def test_a_given_view_of_a_larger_array_is_never_free() -> None:
    storage = Storage(np.zeros((4, 3))[1:3], borrow=True)
    assert storage.version is None


@pytest.mark.parametrize("borrow", [False, True])
def test_a_call_after_a_look_at_a_parameter_runs_in_its_memory(borrow) -> None:
    w = symdnn.shared(np.ones(70, np.float32), borrow=borrow)
    x = T.fvector("x")
    f = symdnn.function([x], updates=[(w, w + x)], mode=symdnn.Mode(target="cpu"))
    w.get_value(borrow=True).shape  # noqa: B018
    for _ in range(4):
        f(np.ones(70, np.float32))
    assert f.plans()[0].bound.run_all is not None, "calls go the short way"
    held = w.get_value(borrow=True)
    f(held)
    np.testing.assert_array_equal(held, np.full(70, 10, np.float32))
