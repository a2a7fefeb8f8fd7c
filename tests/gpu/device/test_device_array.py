"""The array that users get without PyCUDA: its values, and the protocols of other libraries."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu import DeviceArray
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.interop import device_array, from_dlpack
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values import dlpack
from symdnn.graph.values.interop import is_on_device
from tests.gpu.emulator import AVAILABLE
from tests.gpu.fake_device import FakeRuntime

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint16", "bool", "complex64")


@pytest.fixture
def rt():
    if not AVAILABLE:
        pytest.skip("there is no g++ to compile kernels for a CPU")
    return FakeRuntime()


def array_of(rt, value):
    return DeviceArray(rt.array(value), rt.memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_what_it_is_and_a_copy(rt, dtype, shape):
    value = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(numpy_dtype(dtype))
    array = array_of(rt, value)
    got = array.get()
    assert (got.shape, got.dtype) == (array.shape, array.dtype) == (shape, value.dtype)
    np.testing.assert_array_equal(got, value)
    assert (array.size, array.nbytes, array.ndim) == (value.size, value.nbytes, value.ndim)
    assert got.flags.c_contiguous
    assert array.gpudata == array.ptr
    got[...] = 0
    np.testing.assert_array_equal(array.get(), value)


def test_numbers_and_texts_of_it(rt):
    one, more = array_of(rt, np.array([2.5])[0]), array_of(rt, np.array([1.0, 0.0]))
    assert (float(one), int(one), complex(one), one.item()) == (2.5, 2, 2.5, 2.5)
    assert (bool(one), f"{one:.2f}", more.tolist()) == (True, "2.50", [1.0, 0.0])
    assert f"{more}" == repr(more)
    with pytest.raises(ValueError, match="truth value"):
        bool(more)
    with pytest.raises(TypeError):
        float(more)
    np.testing.assert_array_equal(T.as_tensor_variable(more).data, [1, 0])  # a constant


def test_operators_and_parts_are_those_of_copies(rt, rng):
    """A program may compare, add and index results wherever they are."""
    values = rng.normal(size=(3, 4)).astype("float32")
    a, b, one = array_of(rt, values), array_of(rt, values[::-1]), array_of(rt, np.float32(2))
    for f in (
        lambda x, y: x + y, lambda x, y: 2 * x - y / 3, lambda x, y: x < y, lambda x, y: x == y,
        lambda x, y: x != 0.5, lambda x, y: x @ y.T if x is values else x @ y.get().T,
        lambda x, y: -abs(x), lambda x, y: np.exp(x), lambda x, y: values + y,
        lambda x, y: np.add.reduce(x, axis=1), lambda x, y: x[1:, ::2], lambda x, y: x[-1],
        lambda x, y: np.stack(list(x)), lambda x, y: np.concatenate([x, y]),
    ):  # fmt: skip
        got, want = f(a, b), f(values, values[::-1])
        assert (type(got), got.dtype) == (np.ndarray, want.dtype)
        np.testing.assert_array_equal(got, want)
    assert one == 2 and (one, 3) == (2, 3) and one < 3 and not one != 2  # noqa: PT018, SIM202
    total = kept = one
    total += one
    assert total == 4 and kept == 2  # noqa: PT018
    sums = np.zeros(4, "float32")
    np.add(sums, a[0], out=sums)
    np.testing.assert_array_equal(sums, values[0])
    assert {a: "a", b: "b"}[a] == "a"
    x = T.fmatrix("x")
    assert symdnn.function([x], [x * a, a * x])(values)[1].shape == (3, 4)


def test_any_strides(rt):
    value = np.arange(24, dtype="float32").reshape(4, 6)
    raw = rt.array(value)
    for shape, strides, start, wanted in (
        ((6, 4), (4, 24), 0, value.T),
        ((2, 3), (48, 8), 1, value[::2, 1::2]),
        ((4, 6), (-24, -4), 23, value[::-1, ::-1]),
    ):
        seen = RawArray(raw.ptr + 4 * start, shape, "float32", strides, raw.owner)
        array = DeviceArray(seen, rt.memory)
        np.testing.assert_array_equal(array.get(), wanted)
        np.testing.assert_array_equal(np.asarray(array), wanted)
        assert array.strides == strides


def test_numpy_gets_copies_only(rt):
    array = array_of(rt, np.ones(3, "float32"))
    assert np.asarray(array, "float64").dtype == np.float64
    with pytest.raises(ValueError, match="get"):
        array.__array__(copy=False)


def test_its_words(rt):
    array = array_of(rt, np.ones((2, 3), "float32"))
    assert repr(array) == f"<DeviceArray float32(2, 3) on cuda0 at {array.ptr:#x}>"
    assert len(array) == 2
    with pytest.raises(TypeError, match="without dimensions"):
        len(array_of(rt, np.float32(1)))


def test_it_keeps_its_memory_and_no_more(rt):
    raw = rt.array(np.ones(3, "float32"))
    array = DeviceArray(raw, rt.memory)
    owner = weakref.ref(raw.owner) if hasattr(raw.owner, "__weakref__") else None
    gc.disable()
    try:
        object.__setattr__(raw, "_shown", array)  # as a runtime remembers what it showed
        gone = weakref.ref(array)
        del raw
        assert array.get().tolist() == [1, 1, 1]
        assert owner is None or owner() is not None
        del array
        assert gone() is None
    finally:
        gc.enable()


# -- protocols -------------------------------------------------------------------------------------


def test_the_cuda_array_interface(rt):
    raw = rt.array(np.ones((2, 3), "float32"))
    rt.context.stream = 77
    assert DeviceArray(raw, rt.memory).__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<f4", "data": (raw.ptr, False), "strides": None,
        "version": 3, "stream": 77,
    }  # fmt: skip


def test_bfloat16_has_dlpack_alone(rt):
    array = array_of(rt, np.ones(3, numpy_dtype("bfloat16")))
    assert not hasattr(array, "__cuda_array_interface__")
    assert is_on_device(array)
    assert from_dlpack(array.__dlpack__(stream=-1), "x").dtype == "bfloat16"


def test_our_own_is_taken_as_it_is(rt):
    raw = rt.array(np.ones(3, "float32"))
    assert device_array(DeviceArray(raw, rt.memory), rt.context, "x") == raw


@pytest.mark.parametrize("version", [None, (0, 8), (1, 1)])
def test_dlpack_says_where_it_is(rt, version):
    rt.context.index = 1
    raw = rt.array(np.ones((2, 3), "float32"))
    array = DeviceArray(raw, rt.memory)
    assert array.__dlpack_device__() == (2, 1)
    capsule = array.__dlpack__(stream=-1, max_version=version, dl_device=(2, 1), copy=False)
    assert from_dlpack(capsule, "x") == raw


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"dl_device": (1, 0), "copy": False}, BufferError, r"on \(2, 0\), not on \(1, 0\)"),
        ({"dl_device": (2, 1)}, BufferError, "get"),
        ({"copy": True}, BufferError, "get"),
        ({"stream": 0}, ValueError, "stream 0"),
        ({"stream": -2}, ValueError, "stream -2"),
    ],
)
def test_what_dlpack_does_not_do(rt, asked, error, says):
    with pytest.raises(error, match=says):
        array_of(rt, np.ones(3, "float32")).__dlpack__(**asked)


# -- capsules --------------------------------------------------------------------------------------


class Owner:
    """Something that dies."""


def to_dlpack(array, index, owner, **words):
    at = array.ptr, array.shape, array.dtype, array.strides, (dlpack.CUDA, index)
    return dlpack.capsule_of(dlpack.Described(*at, array.read_only, owner), **words)


def test_a_copy_on_the_host(rt):
    value = np.arange(3, dtype="float32")
    for version in (None, (1, 0)):
        capsule = array_of(rt, value).__dlpack__(dl_device=(1, 0), max_version=version)
        found = dlpack.describe(capsule, "x")
        assert (found.device, found.shape) == ((dlpack.CPU, 0), (3,))


@pytest.mark.parametrize("read_only", [False, True])
def test_version_1_says_what_may_not_be_written(read_only):
    raw = RawArray(4096, (3,), "float32", read_only=read_only)
    assert from_dlpack(to_dlpack(raw, 0, None, max_version=(1, 0)), "x").read_only == read_only
    if read_only:
        with pytest.raises(BufferError, match="read-only"):
            to_dlpack(raw, 0, None)


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "complex128"])
def test_a_capsule_holds_what_it_was_made_of(dtype):
    array = RawArray(4096, (3, 2), dtype, (1 * numpy_dtype(dtype).itemsize, 16))
    if 16 % array.itemsize:
        array = RawArray(4096, (3, 2), dtype)
    assert from_dlpack(to_dlpack(array, 0, None), "x") == array


def test_a_capsule_that_nobody_takes_lets_go():
    owner = Owner()
    gone = weakref.ref(owner)
    capsule = to_dlpack(RawArray(4096, (3,), "float32"), 0, owner)
    del owner
    assert gone() is not None
    del capsule
    assert gone() is None
    assert not dlpack._exported


def test_one_that_is_taken_lives_until_the_deleter_is_called():
    owner = Owner()
    gone = weakref.ref(owner)
    capsule = to_dlpack(RawArray(4096, (3,), "float32"), 0, owner)
    del owner
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.restype, rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    address = dlpack._address_in(id(capsule), b"dltensor")
    used = b"used_dltensor"
    rename(capsule, used)
    del capsule
    assert gone() is not None
    managed = dlpack._DLManagedTensor.from_address(address)
    assert managed.dl_tensor.shape[0] == 3
    managed.deleter(address)
    assert gone() is None


def test_an_empty_array_has_no_address():
    capsule = to_dlpack(RawArray(4096, (0, 3), "float32"), 0, None)
    assert from_dlpack(capsule, "x").ptr == 0
