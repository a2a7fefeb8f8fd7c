"""DLPack on the host: both directions, both versions of the protocol, all dtypes, lifetime."""

from __future__ import annotations

import ctypes
import gc
import importlib
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import InputError
from symdnn.graph.values import dlpack
from symdnn.graph.values.dlpack import CPU, CUDA_HOST, HostExport, capsule_of, describe

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


class Speaker:
    """Another library's array: it speaks DLPack of one version and nothing else."""

    def __init__(self, array: Any, versions: tuple[int, ...] = (0, 1), device: int = CPU) -> None:
        self.array, self.versions, self.device = array, versions, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, stream: Any = None, **words: Any) -> Any:
        if words and 1 not in self.versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        version = words.get("max_version") if 1 in self.versions else None
        a = self.array
        dtype = symdnn.tensor.TensorType(a.dtype).dtype
        at = dlpack.Described(
            a.ctypes.data, a.shape, dtype, a.strides, (self.device, 0), not a.flags.writeable, a
        )
        return capsule_of(at, version)


def drawn(dtype: str) -> Any:
    return np.arange(24).reshape(4, 6).astype(symdnn.tensor.TensorType(dtype).numpy)


@pytest.mark.parametrize("versions", [(0,), (0, 1)])
@pytest.mark.parametrize("device", [CPU, CUDA_HOST])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_another_library(dtype: str, versions: Any, device: int) -> None:
    array = drawn(dtype)[1:, ::-2]
    view = symdnn.from_dlpack(Speaker(array, versions, device))
    assert (view.dtype, view.strides) == (array.dtype, array.strides)
    np.testing.assert_array_equal(view, array)
    array[0, 0] = array[1, 1]
    np.testing.assert_array_equal(view, array)  # the same memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)])
def test_our_arrays_come_back(dtype: str, version: Any) -> None:
    array = drawn(dtype)[::2, 1::2].T
    found = describe(HostExport(array).__dlpack__(max_version=version), "x")
    assert (found.ptr, found.shape, found.strides) == (
        array.ctypes.data, array.shape, array.strides,
    )  # fmt: skip
    assert (found.dtype, found.device, found.read_only) == (dtype, (CPU, 0), False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_arrays_of_few_elements(shape: tuple[int, ...]) -> None:
    for array in (np.zeros(shape, "float32"), np.zeros(shape, ml_dtypes.bfloat16)):
        view = symdnn.from_dlpack(Speaker(array))
        assert (view.shape, view.dtype) == (shape, array.dtype)


def test_numpy_reads_what_we_export_and_we_what_it_exports() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(np.from_dlpack(HostExport(array)), array)
    assert np.shares_memory(symdnn.from_dlpack(array), array)
    assert symdnn.as_dlpack(array).__dlpack_device__() == array.__dlpack_device__()


def test_read_only_arrays_stay_so() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    view = symdnn.from_dlpack(Speaker(array))
    assert not view.flags.writeable
    with pytest.raises(BufferError, match="before version 1 has no read-only"):
        HostExport(array).__dlpack__()
    found = describe(HostExport(array).__dlpack__(copy=True), "x")
    assert (found.read_only, found.ptr != array.ctypes.data) == (False, True)
    w = symdnn.shared(np.zeros(3))
    w.set_value(Speaker(array), borrow=True)
    w.set_value(np.ones(3))
    assert array[2] == 2  # it was copied, and not written


def test_memory_lives_as_long_as_a_view_or_a_capsule() -> None:
    array = np.arange(1000.0)
    gone, view = weakref.ref(array), symdnn.from_dlpack(Speaker(array))
    del array
    gc.collect()
    assert gone() is not None
    assert view[7] == 7
    del view
    gc.collect()
    assert gone() is None
    array = np.arange(4.0)
    gone, capsule = weakref.ref(array), HostExport(array).__dlpack__(max_version=(1, 0))
    del array
    assert gone() is not None
    del capsule  # nobody consumed it
    assert gone() is None
    array = np.arange(4.0)
    gone, consumed = weakref.ref(array), np.from_dlpack(HostExport(array))
    del array
    assert consumed[3] == 3
    del consumed  # its deleter
    gc.collect()
    assert gone() is None
    assert not dlpack._exported


def test_what_dlpack_cannot_say_is_refused() -> None:
    swapped = np.arange(3, dtype=">i4")
    if swapped.dtype.isnative:
        pytest.skip("a big-endian machine")
    with pytest.raises(BufferError, match="byte order"):
        HostExport(swapped).__dlpack__()
    odd = np.zeros(4, [("a", "i1"), ("b", "<f4")])["b"]
    with pytest.raises(BufferError, match="strides in elements"):
        HostExport(odd).__dlpack__()
    with pytest.raises(BufferError, match="on the host"):
        HostExport(np.zeros(1)).__dlpack__(dl_device=(2, 0))
    with pytest.raises(InputError, match="a list has no __dlpack__"):
        symdnn.from_dlpack([1.0])
    with pytest.raises(InputError, match="wanted an array, got a list"):
        symdnn.as_dlpack([1.0])


def test_a_later_version_and_unknown_elements_are_refused() -> None:
    capsule = HostExport(np.zeros(2)).__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = dlpack._DLManagedTensorVersioned.from_address(pointer(capsule, b"dltensor_versioned"))
    managed.dl_tensor.lanes = 4
    with pytest.raises(InputError, match="x: arrays of float64 in groups of 4"):
        describe(capsule, "x")
    managed.dl_tensor.lanes, managed.dl_tensor.code = 1, 7
    with pytest.raises(InputError, match="x: arrays of code 7, 64"):
        describe(capsule, "x")
    managed.major = 2
    with pytest.raises(InputError, match="x: DLPack of version 2"):
        describe(capsule, "x")


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "int16"])
def test_functions_and_shared_variables_take_them(dtype: str) -> None:
    array = drawn(dtype)
    w = symdnn.shared(Speaker(array))
    assert w.dtype == dtype
    w.set_value(Speaker(array[::-1]))
    x = T.TensorType(dtype, (None, None))("x")
    f = symdnn.function([x], [T.eq(x, w), x])
    same, back = f(Speaker(array[::-1]))
    assert same.all()
    exported = symdnn.from_dlpack(symdnn.as_dlpack(back))
    assert np.shares_memory(exported, back)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_shared_variable_is_its_own_memory(dtype: str) -> None:
    with symdnn.config.change_flags(device="cpu"):
        w = symdnn.shared(drawn(dtype))
        assert w.__dlpack_device__() == (CPU, 0)
        read = symdnn.function([], w + w)
        inside = symdnn.from_dlpack(w)
        for n in (1, 2, 3):
            inside[...] = n
            np.testing.assert_array_equal(read().astype("float64"), np.full((4, 6), 2.0 * n))
            np.testing.assert_array_equal(w.get_value().astype("float64"), np.full((4, 6), n))
        w.set_value(drawn(dtype) * 0)
        assert not inside.astype("float64").any()


def test_a_shared_variable_is_no_value() -> None:
    x, w = T.dmatrix("x"), symdnn.shared(np.ones((2, 2)))
    with pytest.raises(InputError, match="symbolic variable"):
        symdnn.function([x], x + 1)(w)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_with_the_library_itself(library: str) -> None:
    module = pytest.importorskip(library)
    array = np.arange(6, dtype="float32").reshape(2, 3)
    if library == "torch":
        theirs, read = module.from_numpy(array.copy()), module.from_dlpack
        bf16 = theirs.to(module.bfloat16)
    else:
        theirs, read = (
            module.numpy.asarray(array),
            importlib.import_module("jax.dlpack").from_dlpack,
        )
        bf16 = theirs.astype(module.numpy.bfloat16)
    np.testing.assert_array_equal(symdnn.from_dlpack(theirs), array)
    assert symdnn.from_dlpack(bf16).dtype == ml_dtypes.bfloat16
    back = read(symdnn.as_dlpack(array.astype(ml_dtypes.bfloat16)))
    np.testing.assert_array_equal(symdnn.from_dlpack(back).astype("float32"), array)
    w = symdnn.shared(array)
    np.testing.assert_array_equal(np.asarray(read(w)), array)
