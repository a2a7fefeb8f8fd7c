"""Shared variables whose values are on a GPU: set from there, made there, handed out there."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import DimensionMismatch, InputError
from symdnn.gpu import gpuarray_shared_constructor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def values(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def step_of(w):
    """Adds 1 to ``w`` and gives its sum before."""
    with config.change_flags(device="cuda"):
        return symdnn.function([], w.sum(), updates=[(w, w + 1)])


def close(a, b):
    np.testing.assert_allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), rtol=1e-5, atol=1e-4)


@pytest.fixture
def no_host(cuda, monkeypatch):
    """Copies between host and device are errors while :meth:`armed` says so."""

    class Guard:
        armed = False

    def watched(name):
        real = getattr(type(cuda.memory), name)

        def copy(self, *args):
            assert not Guard.armed, f"{name}: a copy through the host"
            return real(self, *args)

        monkeypatch.setattr(type(cuda.memory), name, copy)

    for name in ("upload", "copy_in", "download", "copy_out"):
        watched(name)
    return Guard


def test_set_value_from_the_gpu_never_sees_the_host(arrays, no_host):
    w = symdnn.shared(values(40, 7), "w")
    step = step_of(w)
    for _ in range(3):  # captured by then
        step()
    address = w.get_value(return_internal_type=True).ptr
    new = values(40, 7, seed=1)
    source = arrays.to_gpu(new)
    no_host.armed = True
    w.set_value(source)
    no_host.armed = False
    assert w.get_value(return_internal_type=True).ptr == address
    arrays.write(source, new * 0)  # a copy was made
    close(step(), new.sum())
    close(w.get_value(), new + 1)
    assert len(step.plans()) == 1


def test_a_borrowed_array_is_the_variable(arrays):
    w = symdnn.shared(values(40, 7), "w")
    step = step_of(w)
    for _ in range(3):
        step()
    source = arrays.to_gpu(values(40, 7, seed=1))
    w.set_value(source, borrow=True)
    assert w.get_value(borrow=True, return_internal_type=True).ptr == source.ptr
    for n in range(4):
        close(step(), (values(40, 7, seed=1) + n).sum())
    close(source.get(), values(40, 7, seed=1) + 4)


def test_another_shape(arrays):
    w = symdnn.shared(values(4, 3), "w")
    step = step_of(w)
    for n in (4, 6, 0, 4):
        new = values(n, 3, seed=n)
        w.set_value(arrays.to_gpu(new) if n else arrays.empty((0, 3), np.float32))
        close(step(), new.sum())
        close(w.get_value(), new + 1)


def test_arrays_that_do_not_lie_as_ours_are_copied(arrays):
    w = symdnn.shared(values(6, 4), "w")
    step = step_of(w)
    step()
    other = values(6, 4, seed=2)
    whole = values(7, 4, seed=3)
    for source, wanted in (
        (arrays.transposed(arrays.to_gpu(other.T)), other),
        (arrays.without_first(arrays.to_gpu(whole)), whole[1:]),
    ):
        w.set_value(source, borrow=True)
        assert w.get_value(return_internal_type=True).ptr != source.ptr
        close(step(), wanted.sum())
        close(w.get_value(), wanted + 1)


@pytest.mark.parametrize("make", [symdnn.shared, gpuarray_shared_constructor])
@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_a_shared_variable_of_an_array_on_the_gpu(arrays, make, borrow, dtype):
    source = arrays.to_gpu((values(5, 3) * 8).astype(dtype))
    w = make(source, "w", borrow=borrow)
    assert (w.name, w.dtype, w.ndim) == ("w", dtype, 2)
    inside = w.get_value(borrow=True, return_internal_type=True)
    assert isinstance(inside, arrays.Array)
    assert (inside.ptr == source.ptr) == borrow
    np.testing.assert_array_equal(w.get_value(), source.get())
    arrays.write(inside, np.full((5, 3), 2, dtype))
    np.testing.assert_array_equal(w.get_value(), np.full((5, 3), 2))


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(library):
    other = pytest.importorskip(library)
    on_gpu = {"device": "cuda"} if library == "torch" else {}
    source = other.arange(12.0, dtype=other.float32, **on_gpu).reshape(3, 4)
    w = symdnn.shared(source)
    close(w.get_value(), np.arange(12).reshape(3, 4))
    w.set_value(source.T)
    close(w.get_value(), np.arange(12).reshape(3, 4).T)
    close(step_of(w)(), 66)


def test_bfloat16_of_torch():
    torch = pytest.importorskip("torch")
    w = symdnn.shared(torch.arange(9.0, device="cuda", dtype=torch.bfloat16))
    assert w.dtype == "bfloat16"
    close(w.get_value(), np.arange(9))


def test_values_of_another_type_are_refused_and_change_nothing(arrays):
    w = symdnn.shared(values(4, 3), "w")
    with pytest.raises(InputError, match=r"set_value of w: wanted .*float64\(4, 3\) on a GPU"):
        w.set_value(arrays.to_gpu(values(4, 3, dtype="float64")))
    with pytest.raises(DimensionMismatch, match="set_value of w: wanted 2 dimension"):
        w.set_value(arrays.to_gpu(values(12)))
    close(w.get_value(), values(4, 3))


def test_a_value_on_the_gpu_is_used_on_the_cpu(arrays):
    w = symdnn.shared(arrays.to_gpu(values(4, 3)))
    with config.change_flags(device="cpu"):
        f = symdnn.function([], w * 2, updates=[(w, w + 1)])
    close(f(), values(4, 3) * 2)
    w.set_value(arrays.to_gpu(values(4, 3, seed=5)))
    close(f(), values(4, 3, seed=5) * 2)
    close(w.get_value(return_internal_type=True).get(), values(4, 3, seed=5) + 1)


def test_the_internal_type_before_any_function_ran(arrays):
    w = symdnn.shared(values(4))
    with config.change_flags(device="cuda"):
        inside = w.get_value(borrow=True, return_internal_type=True)
    assert isinstance(inside, arrays.Array)
    arrays.write(inside, np.ones(4, "float32"))
    close(w.get_value(), np.ones(4))
    x = T.vector("x")
    with config.change_flags(device="cuda"):
        close(symdnn.function([x], (x * w).sum())(np.ones(4, "float32")), 4)


def test_an_array_without_elements_is_taken_at_every_call(arrays):
    x = T.fmatrix("x")
    with config.change_flags(device="cuda"):
        f = symdnn.function([x], [x.sum(0), T.exp(x)])
    nothing = arrays.empty((0, 3), "float32")
    for _ in range(4):
        total, exp = f(nothing)
        np.testing.assert_array_equal(total, np.zeros(3))
        assert exp.shape == (0, 3)
