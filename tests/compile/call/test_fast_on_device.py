"""Repeated calls on a device: arrays there are arguments, numbers there are read, sizes follow."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import DimensionMismatch, InputError, SymdnnError
from symdnn.gpu.device import interop
from tests.gpu.reference_device import ReferenceRuntime

SEED = 20261201
RNG = np.random.default_rng(SEED)
MODE = symdnn.Mode(target="cuda:sm_90")


@pytest.fixture
def rt(monkeypatch):
    """The emulated device; ``rt.put`` makes an array on it, as users have them."""
    import symdnn.gpu.execution.runtime as runtimes

    made = ReferenceRuntime()
    monkeypatch.setattr(runtimes, "_runtimes", {0: made})
    made.put = lambda a: made.lend(made.memory.upload(np.asarray(a), None))
    return made


def floats(*shape):
    return RNG.standard_normal(shape).astype("float32")


def quick(f, calls, monkeypatch):
    """Results of ``calls``, which must take no full path."""
    with monkeypatch.context() as m:
        m.setattr(f, "run", lambda *_: pytest.fail("the full path"))
        return [np.array(on_host(f(*args))) for args in calls]


def on_host(value):
    return value.get() if hasattr(value, "get") else value


def test_a_mask_on_the_device_selects_rows(rt, monkeypatch):
    """The count of rows is read in each call; later masks have other counts, and none."""
    x, m = T.tensor3("x", dtype="float32"), T.vector("m", dtype="bool")
    f = symdnn.function([x, m], symdnn.Out(x[:, m, 0], borrow=True), mode=MODE)
    a, masks = floats(3, 8, 5), [RNG.random(8) < p for p in (0.5, 0.9, 0.0, 0.2)]
    f(rt.put(a), rt.put(masks[0]))
    for _ in range(3):  # arrays of their own, which are freed
        found = quick(f, [(rt.put(a), rt.put(m)) for m in masks], monkeypatch)
        for got, mask in zip(found, masks):
            np.testing.assert_array_equal(got, a[:, mask, 0])
    b, mask = floats(2, 4, 1), np.array([True, False, True, True])
    for _ in range(4):
        np.testing.assert_array_equal(on_host(f(b, rt.put(mask))), b[:, mask, 0])
    (got,) = quick(f, [(b, mask)], monkeypatch)
    np.testing.assert_array_equal(got, b[:, mask, 0])


def test_only_the_reader_of_an_argument_copies_it(rt):
    """What is read after the host has read a count is no result of what ran before that."""
    x, m = T.matrix("x", dtype="float32"), T.vector("m", dtype="bool")
    f = symdnn.function([x, m], x[m], mode=MODE)
    first, second = f.stages.program.segments()
    assert not {v.type.dtype for v in first.outputs} & {"float32"}
    assert [v.name for v in first.inputs] == ["m"]
    assert "x" in [v.name for v in second.inputs]


def test_a_range_up_to_a_count_is_in_the_graph(rt):
    x, m = T.matrix("x", dtype="float32"), T.vector("m", dtype="bool")
    f = symdnn.function([x, m], x[m], mode=MODE)
    a, mask = rt.put(floats(6, 2)), rt.put(np.arange(6) % 2 == 0)
    for _ in range(4):
        f(a, mask)
    rt.take_log()
    f(a, mask)
    log = [n for n in rt.take_log() if not n.startswith(("copy", "wait"))]
    assert log == ["graph", "graph"]


@pytest.mark.parametrize("borrow", [True, False])
def test_a_number_on_the_device_is_read_in_each_call(rt, monkeypatch, borrow):
    x, n = T.matrix("x", dtype="float32"), T.lscalar("n")
    f = symdnn.function([x, n], symdnn.Out(x.reshape((n, 2)) + 1, borrow=borrow), mode=MODE)
    a, number = rt.put(floats(4, 6)), rt.put(np.int64(12))
    for _ in range(4):
        f(a, number)
    quick(f, [(a, number)], monkeypatch)
    with rt.exclusive():
        rt.memory.copy_in(np.array(-1), number._array)
    (got,) = quick(f, [(a, number)], monkeypatch)
    np.testing.assert_array_equal(got, a.get().reshape(-1, 2) + 1)
    with pytest.raises(SymdnnError):
        f(a, rt.put(np.int64(7)))
    quick(f, [(a, number)], monkeypatch)


def test_arguments_that_fit_no_input_are_errors_as_at_first(rt):
    x, m = T.matrix("x", dtype="float32"), T.vector("m", dtype="bool")
    f = symdnn.function([x, m], x[m], mode=MODE)
    mask = rt.put(np.array([True, False]))
    wrong = [rt.put(np.zeros((2, 2))), rt.put(floats(2)), object()]
    texts = []
    for _ in range(2):
        for value in wrong:
            with pytest.raises(InputError) as error:
                f(value, mask)
            texts.append(str(error.value))
        for _ in range(3):
            f(rt.put(floats(2, 2)), mask)
    assert texts[:3] == texts[3:]


def test_updates_by_regions_keep_count_of_what_users_write(rt, monkeypatch):
    x, m = T.vector("x", dtype="float32"), T.vector("m", dtype="bool")
    total = symdnn.shared(np.zeros(3, "float32"))
    f = symdnn.function([x, m], T.sum(x[m]), updates=[(total, total + T.sum(x[m]))], mode=MODE)
    a, mask = floats(9), RNG.random(9) < 0.5
    want = np.zeros(3, "float32")
    for k in range(8):
        if k == 5:
            want = floats(3)
            total.set_value(want)
        np.testing.assert_allclose(f(rt.put(a), rt.put(mask)), a[mask].sum(), rtol=1e-5)
        want = want + a[mask].sum()
        np.testing.assert_allclose(total.get_value(), want, rtol=1e-5)
    total.set_value(floats(2))  # a new shape
    want = total.get_value() + a[mask].sum()
    f(rt.put(a), mask)
    np.testing.assert_allclose(total.get_value(), want, rtol=1e-5)


def test_an_error_of_sizes_in_a_repeated_call_changes_nothing(rt):
    """The sizes fit no more than by a mask of the right count."""
    x, m, y = T.vector("x", dtype="float32"), T.vector("m", dtype="bool"), T.vector("y")
    total = symdnn.shared(np.float32(0))
    f = symdnn.function([x, m, y], updates=[(total, total + T.sum(x[m] * y))], mode=MODE)
    a, right, b = floats(6), np.arange(6) < 3, floats(3).astype(symdnn.config.floatX)
    for _ in range(4):
        f(rt.put(a), rt.put(right), b)
    before = total.get_value()
    with pytest.raises(DimensionMismatch):
        f(rt.put(a), rt.put(np.arange(6) < 4), b)
    assert total.get_value() == before
    f(rt.put(a), rt.put(right), b)
    np.testing.assert_allclose(total.get_value(), before + (a[:3] * b).sum(), rtol=1e-5)


class Foreign:
    """An array of another library, by its interface alone."""

    def __init__(self, array, **more):
        self.array, self.more, self.asked = array, more, 0

    @property
    def __cuda_array_interface__(self):
        self.asked += 1
        raw = self.array._array
        return {"shape": raw.shape, "typestr": "<f4", "data": (raw.ptr, False), "version": 2} | (
            self.more
        )


def test_arrays_of_other_libraries_take_the_fast_path(rt, monkeypatch):
    """Each call reads where they are; one that no function takes is the error of the full path."""
    monkeypatch.setattr(interop, "_check_owner", lambda *_: None)
    x = T.matrix("x", dtype="float32")
    f = symdnn.function([x], T.tanh(x), mode=MODE)
    a, b = floats(4, 3), floats(4, 3)
    given = Foreign(rt.put(a))
    for _ in range(4):
        f(given)
    (got,) = quick(f, [(given,)], monkeypatch)
    np.testing.assert_allclose(got, np.tanh(a), rtol=1e-6)
    given.array, asked = rt.put(b), given.asked
    (got,) = quick(f, [(given,)], monkeypatch)
    np.testing.assert_allclose(got, np.tanh(b), rtol=1e-6)
    assert given.asked > asked
    with pytest.raises(InputError, match="mask"):
        f(Foreign(rt.put(a), mask=object()))
