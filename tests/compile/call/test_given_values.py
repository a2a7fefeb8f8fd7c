"""Arrays of other libraries as inputs, constants and shared values: one rule for all of them."""

from __future__ import annotations

import array
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import InputError
from symdnn.io import load_parameters, save_parameters


class Tensor:
    """What of a tensor of PyTorch is used here; NumPy has to be asked for by ``numpy()``."""

    __hash__ = None

    def __init__(self, numbers, kind=None, grad=False, conj=False):
        self.numbers, self.kind = np.asarray(numbers), kind
        self.requires_grad, self.conj = grad, conj

    @property
    def dtype(self):
        return self.kind or str(self.numbers.dtype)

    def detach(self):
        return Tensor(self.numbers, self.kind, conj=self.conj)

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return False

    def resolve_conj(self):
        return Tensor(self.numbers.conj(), self.kind)

    def view(self, dtype):
        assert (dtype, self.kind) == ("int16", "bfloat16")
        return Tensor(self.numbers.view("int16"))

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use ...detach()")
        if self.conj:
            raise RuntimeError("Can't call numpy() on Tensor that has conjugate bit set")
        if self.kind == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.numbers

    def __array__(self, dtype=None, copy=None):
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


@pytest.fixture(params=["as PyTorch's", "PyTorch's own"])
def tensor(request, monkeypatch):
    """A function that makes a tensor of an array."""
    if request.param == "as PyTorch's":
        module = types.SimpleNamespace(Tensor=Tensor, bfloat16="bfloat16", int16="int16")
        monkeypatch.setitem(sys.modules, "torch", module)
        return Tensor

    torch = pytest.importorskip("torch")

    def make(numbers, kind=None, grad=False, conj=False):
        if kind == "bfloat16":
            made = torch.from_numpy(numbers.view("int16").copy()).view(torch.bfloat16)
        else:
            made = torch.from_numpy(np.asarray(numbers).copy())
        made = made.conj() if conj else made
        return made.requires_grad_() if grad else made

    return make


class Failing:
    """An object whose numbers cannot be had."""

    dtype, shape = np.dtype("float32"), (2,)

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("it lies elsewhere")


DOUBLES = np.array([0.1, 0.2])
SOURCES = {
    "numpy": lambda: DOUBLES,
    "numpy scalars' array": lambda: DOUBLES[:, None][:, 0],
    "a buffer": lambda: memoryview(DOUBLES),
    "array.array": lambda: array.array("d", DOUBLES),
    "a protocol": lambda: types.SimpleNamespace(__array_interface__=DOUBLES.__array_interface__),
    "a class with __array__": lambda: Tensor(DOUBLES),
}


def identity(dtype="float32"):
    x = T.TensorType(dtype, (None,))("x")
    return symdnn.function([x], x + 0 if dtype != "bfloat16" else x)


@pytest.mark.parametrize("source", SOURCES)
def test_doubles_are_narrowed_for_no_source(source):
    value = SOURCES[source]()
    with pytest.raises(InputError, match=r"\(x\): wanted .*float32.*lose precision"):
        identity()(value)
    np.testing.assert_array_equal(identity("float64")(value), DOUBLES)
    x = T.fvector("x")
    f = symdnn.function([x], x + 0, allow_input_downcast=True)
    np.testing.assert_array_equal(f(value), DOUBLES.astype("f"))
    s = symdnn.shared(np.zeros(2, "f"), name="s")
    with pytest.raises(InputError, match="set_value of s: wanted"):
        s.set_value(value)


def test_lists_and_numbers_of_python_are_taken_as_before():
    np.testing.assert_array_equal(identity()([0.1, 0.2]), DOUBLES.astype("f"))
    np.testing.assert_array_equal(identity()((1, 2)), [1, 2])
    np.testing.assert_array_equal(identity()(range(2)), [0, 1])


def test_a_tensor_of_doubles_is_not_narrowed(tensor):
    with pytest.raises(InputError, match=r"\(x\): wanted .*lose precision"):
        identity()(tensor(DOUBLES))
    np.testing.assert_array_equal(identity()(tensor(DOUBLES.astype("f"))), DOUBLES.astype("f"))


def test_a_tensor_with_a_gradient_gives_its_numbers(tensor):
    value = DOUBLES.astype("f")
    np.testing.assert_array_equal(identity()(tensor(value, grad=True)), value)
    np.testing.assert_array_equal(symdnn.shared(tensor(value, grad=True)).get_value(), value)
    np.testing.assert_array_equal(T.as_tensor_variable(tensor(value, grad=True)).eval(), value)


def test_a_tensor_of_bfloat16_is_taken_bit_by_bit(tensor, rng):
    bits = rng.integers(0, 2**16, 200).astype("uint16")
    value = bits.view(ml_dtypes.bfloat16)
    given = tensor(value, kind="bfloat16")
    got = identity("bfloat16")(given)
    np.testing.assert_array_equal(got.view("uint16"), bits)
    assert symdnn.shared(given).dtype == "bfloat16"
    wide = identity("float32")(given)  # which loses nothing
    np.testing.assert_array_equal(wide, value.astype("float32"))


def test_a_conjugate_tensor_is_what_it_says(tensor):
    value = np.array([1 + 2j, 3 - 4j], "complex64")
    np.testing.assert_array_equal(identity("complex64")(tensor(value, conj=True)), value.conj())


def given_everywhere(value):
    """Each way in which a value comes in: (what the error has to name, a function)."""
    x, s = T.fvector("x"), symdnn.shared(np.zeros(2, "f"), name="s")
    f = symdnn.function([x], x)
    return {
        "(x)": lambda: f(value),
        "input 0 (x)": lambda: f(x=value),
        "set_value of s": lambda: s.set_value(value),
        "shared w": lambda: symdnn.shared(value, name="w"),
        "constant": lambda: x + value if not isinstance(value, np.ndarray) else T.constant(value),
        "In(x)": lambda: symdnn.function([symdnn.In(x, value=value)], x),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("mask", [False, True, [True, False]])
def test_masked_arrays_are_refused_wherever_they_come_in(dtype, mask):
    value = np.ma.masked_array(np.ones(2, dtype), mask=mask)
    for name, give in given_everywhere(value).items():
        with pytest.raises(InputError, match="masked array") as caught:
            give()
        assert name in str(caught.value)


def test_lists_of_masked_arrays_are_refused():
    rows = [np.ma.masked_array(np.ones(2, "f"), mask=[1, 0])] * 2
    x = T.fmatrix("x")
    for value in (rows, tuple(rows), [[1.0, 2.0], rows[0]]):
        with pytest.raises(InputError, match=r"\(x\).*masked array"):
            symdnn.function([x], x)(value)


def test_what_fails_to_give_its_numbers_names_the_input():
    for name, give in given_everywhere(Failing()).items():
        with pytest.raises(InputError, match="it lies elsewhere") as caught:
            give()
        assert name in str(caught.value)


def test_saving_takes_the_same(tensor, tmp_path):
    path = tmp_path / "w.npz"
    save_parameters(path, {"w": tensor(DOUBLES.astype("f"), grad=True)})
    np.testing.assert_array_equal(load_parameters(path)["w"], DOUBLES.astype("f"))
    for value, why in (
        (np.ma.masked_array(DOUBLES, mask=[0, 1]), "mask"),
        (Failing(), "elsewhere"),
    ):
        with pytest.raises(InputError, match=f"'w'.*{why}"):
            save_parameters(path, {"w": value})


class Elsewhere:
    """An array of another library, on a device that no protocol knows."""

    def __dlpack_device__(self):
        raise ValueError("Unknown device type meta")

    def __dlpack__(self, **_):
        raise BufferError("no data")


@pytest.mark.parametrize("what", ["call", "shared", "set_value", "constant"])
def test_an_array_that_is_nowhere_is_an_error_that_names_the_input(what):
    x, w = T.dvector("x"), symdnn.shared(np.zeros(2), "w")
    places = {
        "call": (symdnn.function([x], x), r"input 0 \(x\)"),
        "shared": (lambda v: symdnn.shared(v, "w"), "shared w"),
        "set_value": (w.set_value, "set_value of w"),
        "constant": (lambda v: x + v, "cannot make a constant of .*Elsewhere"),
    }
    take, named = places[what]
    with pytest.raises(InputError, match=f"{named}.*no array can be made of this Elsewhere"):
        take(Elsewhere())


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpys_matrices_are_arrays():
    """``np.matrix``, as of ``sparse.todense()``, has two dimensions in its parts, and a product."""
    plain = np.arange(6.0).reshape(2, 3)
    given, x = np.asmatrix(plain), T.dmatrix("x")
    parts = [x * x, x[0], x.flatten() + 1, x.max(1), x.sum(0), T.sort(x, 1)]
    wanted = [plain * plain, plain[0], plain.ravel() + 1, plain.max(1), plain.sum(0), plain]
    held = symdnn.shared(given, borrow=True)
    in_shared = symdnn.function([], parts, givens={x: held})
    as_default = symdnn.function([symdnn.In(x, value=given)], parts)
    narrow = symdnn.function([x], parts)
    for found in (
        symdnn.function([x], parts)(given), in_shared(), as_default(),
        narrow(given.astype("float32")), symdnn.function([], parts, givens={x: given})(),
        symdnn.jit(lambda x: [x * x, x[0], x.flatten() + 1, x.max(1), x.sum(0)])(given),
    ):  # fmt: skip
        for value, right in zip(found, wanted):
            np.testing.assert_array_equal(np.asarray(value), right)
    held.set_value(given)
    assert type(held.get_value(borrow=True)) is np.ndarray
    assert type(T.constant(given).data) is np.ndarray
