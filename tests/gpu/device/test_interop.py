"""Arrays of other libraries: what they say of themselves, and who takes them. Needs no GPU."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In, Mode, Out
from symdnn.errors import DimensionMismatch, InputError
from symdnn.gpu import gpuarray_shared_constructor
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.interop import device_array, from_dlpack, from_interface
from symdnn.graph.place import Place
from symdnn.graph.values import interop
from symdnn.graph.values.interop import is_on_device
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu


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
    assert array == RawArray(4096, (2, 3), dtype)
    assert array.owner is value


def test_strides_are_kept():
    value = OnDevice((3, 2), "<f4", (4, 12))
    array = from_interface(value.__cuda_array_interface__, value, "x")
    assert array.strides == (4, 12)
    assert not array.contiguous


def test_our_own_interface_is_read_back():
    array = RawArray(4096, (3, 2), "float16", (2, 6))
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
    assert is_on_device(RawArray(4096, (2,), "float32"))
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

    def known(self, value):
        """None: no array is one that the runtime has described before."""

    def adopt(self, value, what, on_host=False):
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
    assert given == RawArray(4096, (2, 3), "float32")
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

    place = Place("cuda")

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
    buffer = w.storage.on(FakeMemory())
    lent = w.get_value(return_internal_type=True)
    assert lent is buffer
    lent[:] = 5
    np.testing.assert_array_equal(w.get_value(), [5, 5, 5])
    w.set_value(np.ones(3, "float32"))
    np.testing.assert_array_equal(lent, [1, 1, 1])  # it is the variable's memory still
    lent[0] = 7
    np.testing.assert_array_equal(w.get_value(), [7, 1, 1])
    w.set_value(np.ones(3, "float32"))
    np.testing.assert_array_equal(w.get_value(return_internal_type=True), [1, 1, 1])
    assert w.get_value(return_internal_type=True) is buffer


# --- values of shared variables that are on a device ----------------------------------------------


class OnFake:
    """An array on the fake device: :class:`symdnn.graph.values.storage.Placed` and a value."""

    def __init__(self, array, memory, lies_well=True):
        self.array, self.memory, self.lies_well = array, memory, lies_well
        self.shape, self.dtype = array.shape, array.dtype.name
        self.__cuda_array_interface__ = {}

    def copied(self, into):
        return self.memory.upload(self.array, into)

    def itself(self):
        return self.array if self.lies_well else None


class FakeTargets:
    """What the layer of targets is asked: arrays are where they say, variables on the fake GPU."""

    def __init__(self):
        self.memory = FakeMemory()

    def place(self, value, what):
        return value

    def home(self, type_):
        return self.memory if type_.ndim else None


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeTargets()
    monkeypatch.setattr(interop, "_targets", [fake])
    return fake


def on_gpu(gpu, value, **more):
    return OnFake(np.array(value, "float32"), gpu.memory, **more)


def refuse(*_):
    raise AssertionError("the host was not to be used")


def test_a_value_on_a_device_is_copied_there(gpu, monkeypatch):
    w = symdnn.shared(np.zeros(3, "float32"))
    buffer = w.storage.on(gpu.memory)
    generation, given = w.storage.generation, on_gpu(gpu, [1, 2, 3])
    monkeypatch.setattr(gpu.memory, "download", refuse)
    w.set_value(given)
    assert w.storage.on(gpu.memory) is buffer  # plans that know its address stay right
    assert w.storage.generation == generation
    given.array[:] = 7
    monkeypatch.undo()
    np.testing.assert_array_equal(w.get_value(), [1, 2, 3])


def test_a_value_of_another_shape_takes_a_new_buffer(gpu):
    w = symdnn.shared(np.zeros(3, "float32"))
    buffer, generation = w.storage.on(gpu.memory), w.storage.generation
    w.set_value(on_gpu(gpu, [1, 2]))
    assert w.storage.on(gpu.memory) is not buffer
    assert w.storage.generation == generation + 1
    np.testing.assert_array_equal(w.get_value(), [1, 2])
    w.set_value(np.ones(2, "float32"))
    np.testing.assert_array_equal(w.storage.on(gpu.memory), [1, 1])


@pytest.mark.parametrize("lies_well", [True, False])
def test_a_borrowed_value_is_the_array_itself_where_it_can_be(gpu, lies_well):
    w = symdnn.shared(np.zeros(2, "float32"))
    w.storage.on(gpu.memory)
    generation, given = w.storage.generation, on_gpu(gpu, [1, 2], lies_well=lies_well)
    w.set_value(given, borrow=True)
    assert (w.storage.on(gpu.memory) is given.array) == lies_well
    assert w.storage.generation == generation + lies_well
    np.testing.assert_array_equal(w.get_value(), [1, 2])


@pytest.mark.parametrize("make", [symdnn.shared, gpuarray_shared_constructor])
def test_a_shared_variable_is_made_of_an_array_on_a_device(gpu, make):
    given = on_gpu(gpu, [[1, 2]])
    w = make(given, "w", borrow=True)
    assert (w.name, w.dtype, w.ndim) == ("w", "float32", 2)
    assert w.get_value(borrow=True, return_internal_type=True) is given.array
    given.array[:] = 5
    np.testing.assert_array_equal(w.get_value(), [[5, 5]])
    row = make(given, broadcastable=(True, False))
    assert row.type.shape == (1, None)
    assert row.get_value(return_internal_type=True) is not given.array


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros(2), InputError, r"set_value of w: wanted .*, got float64\(2,\) on a GPU"),
        (np.zeros((2, 2), "float32"), DimensionMismatch, "set_value of w: wanted 1 dimension"),
        (np.zeros(3, "float32"), DimensionMismatch, "set_value of w: dimension 0 is 2"),
    ],
)
def test_a_value_of_another_type_is_refused(gpu, value, error, message):
    w = symdnn.shared(np.ones(2, "float32"), "w", shape=(2,))
    with pytest.raises(error, match=message):
        w.set_value(OnFake(value, gpu.memory))
    np.testing.assert_array_equal(w.get_value(), [1, 1])


def test_shared_checks_the_type_too(gpu):
    with pytest.raises(InputError, match=r"shared w: wanted .*float64.*, got float32\(2,\)"):
        symdnn.shared(on_gpu(gpu, [1, 2]), "w", dtype="float64")
    with pytest.raises(DimensionMismatch, match="shared w: dimension 0 is 3"):
        symdnn.shared(on_gpu(gpu, [1, 2]), "w", shape=(3,))


def test_the_internal_type_is_the_home_s_where_no_function_ran(gpu):
    w = gpuarray_shared_constructor(np.zeros(3, "float32"))
    inside = w.get_value(borrow=True, return_internal_type=True)
    inside[:] = 4
    np.testing.assert_array_equal(w.get_value(), [4, 4, 4])
    n = symdnn.shared(3)
    assert n.get_value(return_internal_type=True) == 3  # kept on the host
    assert not n.storage._devices


def test_what_is_written_through_a_lent_array_is_seen_at_any_time(gpu):
    w = gpuarray_shared_constructor(np.zeros(3, "float32"))
    inside = w.get_value(return_internal_type=True)
    for n in (1, 2):
        inside[:] = n
        np.testing.assert_array_equal(w.get_value(), [n, n, n])
    w.set_value(np.full(3, 7, "float32"))  # the host's is the newest now
    np.testing.assert_array_equal(w.get_value(), [7, 7, 7])
    assert w.storage.on(gpu.memory) is inside
    np.testing.assert_array_equal(inside, [7, 7, 7])
    given = on_gpu(gpu, [4, 5])
    w.set_value(given, borrow=True)
    given.array[:] = 9
    np.testing.assert_array_equal(w.get_value(), [9, 9])
    given.array[:] = 8
    np.testing.assert_array_equal(w.get_value(), [8, 8])


def test_without_a_gpu_the_home_is_the_host():
    with symdnn.config.change_flags(device="cpu"):
        w = symdnn.shared(np.zeros(3, "float32"))
        assert isinstance(w.get_value(return_internal_type=True), np.ndarray)


class Capsule:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_dlpack_on_the_host_is_enough():
    w = symdnn.shared(Capsule(np.arange(3.0)))
    w.set_value(Capsule(np.arange(4.0)))
    np.testing.assert_array_equal(w.get_value(), np.arange(4.0))
    x = T.dvector("x")
    f = symdnn.function([x], x + w, mode=Mode(target="cpu"))
    np.testing.assert_array_equal(f(Capsule(np.ones(4))), np.arange(4.0) + 1)


def test_the_constructor_of_shared_variables_wants_an_array():
    with pytest.raises(TypeError, match="wanted an array"):
        gpuarray_shared_constructor([1.0, 2.0])
    row = gpuarray_shared_constructor(np.zeros((1, 2)), broadcastable=(True, False))
    assert row.type.shape == (1, None)


@pytest.mark.parametrize(
    ("owner", "ordinal", "refusal"),
    [
        ((0, 7), (0, 1), None),
        ((0, 7), (1, 0), None),  # the driver does not say: the context is enough
        ((0, 0), (0, 1), None),
        ((0, 0), (1, 0), None),
        ((0, 0), (0, 0), "the array is on cuda0, the function on cuda1"),
        ((0, 8), (0, 1), "the array is in another context"),
        ((1, 0), (0, 1), "is no memory of a CUDA device"),
    ],
)
def test_memory_that_kernels_of_a_context_can_read(owner, ordinal, refusal, monkeypatch):
    """``owner`` and ``ordinal``: (status, value) of the driver's attributes of an address."""
    driver = pytest.importorskip("cuda.bindings.driver")
    wanted = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
    answer = {True: owner, False: ordinal}
    monkeypatch.setattr(driver, "cuPointerGetAttribute", lambda a, _: answer[a == wanted])
    here = SimpleNamespace(_handle=7, index=1, place=Place("cuda", 1), stream=0, wait_for=print)
    given = OnDevice((3,), "<f4")
    if refusal is None:
        assert device_array(given, here, "x").shape == (3,)
    else:
        with pytest.raises(InputError, match=refusal):
            device_array(given, here, "x")
