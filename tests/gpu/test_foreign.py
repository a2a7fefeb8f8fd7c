"""Arrays of other libraries: what they say of themselves, and who takes them. Needs no GPU."""

import ctypes

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In, Mode, Out
from symdnn.compile.arguments import is_on_device
from symdnn.errors import DimensionMismatch, InputError
from symdnn.gpu import gpuarray_shared_constructor
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.foreign import from_dlpack, from_interface
from symdnn.ops.transfer import GpuFromHost, HostFromGpu


class OnDevice:
    """What PyCUDA's, CuPy's and PyTorch's arrays say of themselves."""

    def __init__(self, shape, typestr, strides=None, ptr=4096, **more):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (ptr, False), "strides": strides,
            "version": 3, **more,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("typestr", "dtype"), [("<f4", "float32"), ("|b1", "bool"), ("<V2", "bfloat16")]
)
def test_an_interface_is_read(typestr, dtype):
    value = OnDevice((2, 3), typestr)
    array = from_interface(value.__cuda_array_interface__, value, "x")
    assert array == DeviceArray(4096, (2, 3), dtype)
    assert array.owner is value


def test_strides_are_kept():
    value = OnDevice((3, 2), "<f4", (4, 12))
    array = from_interface(value.__cuda_array_interface__, value, "x")
    assert array.strides == (4, 12)
    assert not array.contiguous


def test_our_own_interface_is_read_back():
    array = DeviceArray(4096, (3, 2), "float16", (2, 6))
    assert from_interface(array.__cuda_array_interface__, array, "x") == array


@pytest.mark.parametrize(
    "value", [OnDevice((2,), "<U4"), OnDevice((2,), "<f4", mask=OnDevice((2,), "|b1"))]
)
def test_what_is_no_plain_array_is_refused(value):
    with pytest.raises(InputError, match=r"x: arrays (of <U4|with a mask) are not taken"):
        from_interface(value.__cuda_array_interface__, value, "x")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "bool", "complex64"])
def test_a_dlpack_capsule_is_read(dtype):
    host = np.zeros((4, 6), dtype)[1:, ::2]
    array = from_dlpack(host.__dlpack__(), "x")
    assert (array.ptr, array.shape, array.strides) == (host.ctypes.data, (3, 3), host.strides)
    assert array.dtype == dtype


def test_a_dlpack_capsule_keeps_the_memory_alive():
    host = np.arange(1000.0)
    array = from_dlpack(host.__dlpack__(), "x")
    address = host.ctypes.data
    del host
    assert (ctypes.c_double * 1000).from_address(address)[7] == 7
    assert array.owner is not None


def test_what_is_on_a_device():
    assert is_on_device(OnDevice((2,), "<f4"))
    assert is_on_device(DeviceArray(4096, (2,), "float32"))
    assert not any(map(is_on_device, [np.zeros(2), np.float32(1), 1.0, [1.0], None]))

    class Torch:  # its tensors on the CPU have the property, and it raises
        @property
        def __cuda_array_interface__(self):
            raise AttributeError

        def __dlpack_device__(self):
            return (self.kind, 0)

    tensor = Torch()
    for tensor.kind, expected in ((1, False), (2, True), (13, True)):
        assert is_on_device(tensor) == expected


def test_a_function_on_the_cpu_refuses_it():
    x = T.matrix("x")
    f = symdnn.function([x], x + 1, mode=Mode(target="cpu"))
    with pytest.raises(InputError, match=r"input 0 \(x\): the array is on a GPU and the function"):
        f(OnDevice((2, 3), "<f4"))


class Adopter:
    """A runtime that takes arrays, as the CUDA runtime does."""

    def __init__(self):
        self.copied = []

    def __call__(self, value, what, on_host=False):
        if on_host:
            self.copied.append(value)
            return np.zeros(value.shape, value.dtype)
        return from_interface(value.__cuda_array_interface__, value, what)


def on_described_gpu(inputs, outputs):
    return symdnn.function(inputs, outputs, mode=Mode(target="cuda:sm_90"))


def bound(f, value, trusted=False):
    adopter = Adopter()
    (given,) = f.arguments.bind([value], {}, trusted, adopter).values()
    return given, adopter.copied


@pytest.mark.parametrize("trusted", [False, True])
def test_a_function_on_the_gpu_takes_it_where_it_is(trusted):
    x = T.matrix("x")
    given, copied = bound(on_described_gpu([x], x.sum()), OnDevice((2, 3), "<f4"), trusted)
    assert given == DeviceArray(4096, (2, 3), "float32")
    assert not copied


def test_it_is_copied_where_the_host_reads_it():
    n = T.iscalar("n")
    given, copied = bound(on_described_gpu([n], T.ones((n, 2)).sum()), OnDevice((), "<i4"))
    assert isinstance(given, np.ndarray)
    assert copied


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (OnDevice((2, 3), "<f8"), InputError, r"got float64\(2, 3\) on a GPU"),
        (OnDevice((2,), "<f4"), DimensionMismatch, r"wanted 2 dimension"),
    ],
)
def test_nothing_is_converted_on_a_gpu(value, error, message):
    x = T.matrix("x")
    f = on_described_gpu([In(x, allow_downcast=True)], x.sum())
    with pytest.raises(error, match=message):
        bound(f, value)


def transfers(f):
    return [type(n.op) for n in f.fgraph.nodes if isinstance(n.op, GpuFromHost | HostFromGpu)]


def test_a_borrowed_output_is_not_copied_to_the_host():
    x = T.matrix("x")
    assert transfers(on_described_gpu([x], Out(x * 2))) == [GpuFromHost, HostFromGpu]
    assert transfers(on_described_gpu([x], Out(x * 2, borrow=True))) == [GpuFromHost]


class FakeMemory:
    """A device's memory that is NumPy's."""

    device = "cuda0"

    def upload(self, array, into):
        if into is None:
            return array.copy()
        np.copyto(into, array)
        return into

    def download(self, buffer):
        return buffer.copy()

    def lend(self, buffer):
        return buffer


def test_internal_type_is_the_memory_on_the_device():
    w = gpuarray_shared_constructor(np.zeros(3, "float32"))
    assert isinstance(w.get_value(return_internal_type=True), np.ndarray)  # used nowhere yet
    buffer = w.storage.on(FakeMemory())
    lent = w.get_value(return_internal_type=True)
    assert lent is buffer
    lent[:] = 5
    np.testing.assert_array_equal(w.get_value(), [5, 5, 5])
    w.set_value(np.ones(3, "float32"))
    np.testing.assert_array_equal(w.get_value(return_internal_type=True), [1, 1, 1])
    assert w.get_value(return_internal_type=True) is buffer


def test_the_constructor_of_shared_variables_wants_an_array():
    with pytest.raises(TypeError, match="wanted an array"):
        gpuarray_shared_constructor([1.0, 2.0])
    row = gpuarray_shared_constructor(np.zeros((1, 2)), broadcastable=(True, False))
    assert row.type.shape == (1, None)
