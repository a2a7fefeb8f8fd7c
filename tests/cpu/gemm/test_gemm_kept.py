"""Parameters of products that are kept in panels: the same bits, and new panels for new values."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_direct import DirectProduct
from symdnn.cpu.gemm.gemm_kept import KeptPanels
from symdnn.cpu.threads import threads
from tests.seeded import new_rng

missing = jit.problem() or threads.problem()
pytestmark = pytest.mark.skipif(bool(missing), reason=missing or "")


def normal(*shape):
    return new_rng().normal(size=shape).astype("float32")


@pytest.fixture
def packings(monkeypatch):
    """The sizes of all parameters that were put into panels."""
    found = []

    def noting(pack):
        def note(self, b, memory):
            found.append(b.shape)
            pack(self, b, memory)

        return note

    for kind in (KeptPanels, DirectProduct):
        monkeypatch.setattr(kind, "_pack", noting(kind._pack))
    return found


def product(w, turned=False, relu=False, bias=None):
    x = T.fmatrix("x")
    y = T.dot(x, w.T if turned else w)
    y = y if bias is None else y + bias
    return symdnn.function([x], T.nnet.relu(y) if relu else y)


#: (rows, terms, columns): with incomplete panels, several blocks, one row.
SIZES = [(30, 530, 520), (1, 513, 600), (70, 3000, 97), (4, 600, 512), (41, 1300, 203)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_same_bits_as_without(packings, turned, count):
    for m, k, n in SIZES:
        with config.change_flags({"openmp.threads": count}):
            w = symdnn.shared(normal(n, k) if turned else normal(k, n))
            x, bias = normal(m, k), symdnn.shared(normal(n))
            kept = product(w, turned, relu=True, bias=bias)
            with config.change_flags(keep_prepared=False):
                plain = product(w, turned, relu=True, bias=bias)
                wanted = [plain(x) for _ in range(3)][-1]
            before = len(packings)
            found = [kept(x) for _ in range(4)]
            for y in found:
                np.testing.assert_array_equal(y, wanted)
            assert len(packings) <= before + 1
            if count == 1:
                assert packings[-1] == (k, n)


def test_panels_follow_the_parameter(packings):
    w = symdnn.shared(normal(513, 513))
    f, x = product(w), normal(60, 513)
    new = symdnn.function([], updates=[(w, w * np.float32(2))])
    with config.change_flags({"openmp.threads": 1}):  # parts of any columns have panels
        first = [f(x) for _ in range(3)][-1]
        assert len(packings) == 1
        new()
        for _ in range(3):
            np.testing.assert_allclose(f(x), 2 * first, rtol=1e-5, atol=1e-5)
        assert len(packings) == 2
        w.set_value(normal(513, 513))
        for _ in range(3):
            np.testing.assert_allclose(f(x), x @ w.get_value(), rtol=1e-4, atol=1e-4)
        assert len(packings) == 3


def test_a_parameter_that_changes_in_each_call_is_not_kept(packings):
    w, x = symdnn.shared(normal(513, 513)), T.fmatrix("x")
    y = T.dot(x, w)
    f = symdnn.function([x], y, updates=[(w, w + np.float32(1))])
    for _ in range(4):
        f(normal(30, 513))
    assert not packings


@pytest.mark.parametrize(("rows", "columns"), [(2, 512), (4100, 513)])
def test_small_products_and_those_of_many_rows_are_as_before(packings, rows, columns):
    f = product(symdnn.shared(normal(columns, columns)))
    for _ in range(4):
        f(normal(rows, columns))
    assert not packings


def test_two_variables_are_as_before(packings):
    a, b = T.fmatrix("a"), T.fmatrix("b")
    f = symdnn.function([a, b], T.dot(a, b))
    for _ in range(4):
        f(normal(30, 513), normal(513, 513))
    assert not packings


@pytest.mark.parametrize("threads_", [1, 2, 3])
def test_an_addend_and_rows_that_are_not_contiguous(threads_):
    x, more = T.fmatrix("x"), T.fmatrix("more")
    w, data, addend = normal(1100, 130), normal(90, 2200)[:, ::2], normal(90, 130)
    f = symdnn.function([x, more], T.nnet.relu(T.dot(x, symdnn.shared(w)) + more))
    wanted = np.maximum(data.astype("f8") @ w + addend, 0)
    with config.change_flags({"openmp.threads": threads_}):
        for _ in range(3):
            np.testing.assert_allclose(f(data, addend), wanted, rtol=1e-4, atol=1e-4)
