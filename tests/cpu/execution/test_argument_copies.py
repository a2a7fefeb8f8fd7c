"""Arguments that are not contiguous: copied by compiled loops once their layout repeats."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.argument_copies import ArgumentCopies

LAYOUTS = {
    "transposed": lambda a: a.T,
    "turned": lambda a: a.reshape(20, 30, 40).transpose(2, 0, 1),
    "steps": lambda a: a[::2, ::-3],
    "broadcast": lambda a: np.broadcast_to(a[:1], (30, 800)),
}


class Counted(np.ndarray):
    copies = 0

    def copy(self, order="C"):
        Counted.copies += 1
        return np.asarray(self).copy(order)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool", "complex64", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_are_those_of_numpy(layout, dtype):
    rng, copies = np.random.default_rng(0), ArgumentCopies()
    for _ in range(9):
        whole = rng.integers(0, 99, (270, 800)).astype(dtype)
        given = LAYOUTS[layout](whole[:30] if layout == "turned" else whole)
        found = copies(given)
        assert found.flags.c_contiguous
        assert found.flags.owndata
        assert np.array_equal(found, given)


def test_a_layout_that_repeats_is_not_copied_by_numpy():
    array, copies = np.zeros((300, 200), np.float32).T.view(Counted), ArgumentCopies()
    counts = []
    for _ in range(12):
        copies(array)
        counts.append(Counted.copies)
    assert 1 <= counts[-1] < 12
    assert counts[-1] == counts[-4]


def test_calls_with_other_strides_take_the_fast_path(monkeypatch):
    x = T.fmatrix()
    f = symdnn.function([x], x.sum(1))
    given = np.random.default_rng(1).normal(size=(6, 50)).astype("float32")
    for _ in range(3):
        f(given)
    monkeypatch.setattr(type(f), "run", None)  # the full path
    assert np.allclose(f(given[:, ::-1]), given.sum(1), atol=1e-4)
    assert np.allclose(f(np.asfortranarray(given)), given.sum(1), atol=1e-4)
