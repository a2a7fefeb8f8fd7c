"""The table of builders: what is said of a name that it does not have."""

import copy
import operator as operator_module
import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymbolicValueError, SymdnnError
from symdnn.graph.operators import operator


@pytest.mark.parametrize(
    ("name", "advice"), [("sigmoidd", "did you mean 'sigmoid'?"), ("qqqq", "OPERATORS")]
)
def test_a_builder_that_is_not_there(name: str, advice: str):
    with pytest.raises(SymdnnError) as raised:
        operator(name)
    assert advice in str(raised.value)


REFLECTED = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_",
    "xor",
]  # fmt: skip


@pytest.mark.parametrize("first", [110, np.int64(110), np.array([110, 9, 3])], ids=repr)
@pytest.mark.parametrize("name", REFLECTED)
def test_a_number_or_an_array_stands_in_front(name, first):
    function = getattr(operator_module, name)
    i, values = T.lvector(), np.array([1, 2, 5])
    found = symdnn.function([i], function(first, i))(values)
    np.testing.assert_allclose(found, function(first, values), rtol=1e-6)


def test_a_number_is_divided_with_its_rest():
    i = T.lvector()
    quotient, rest = symdnn.function([i], list(divmod(110, i)))(np.array([7, -7, 5]))
    np.testing.assert_array_equal([quotient, rest], np.divmod(110, [7, -7, 5]))


def test_a_format_of_numbers_needs_a_value():
    x = T.dscalar("x")
    assert f"{x}" == "x"
    assert f"{x:>3}" == "  x"
    for spec in (".3f", "d", "e"):
        with pytest.raises(SymbolicValueError, match="has a value in a call only"):
            format(x, spec)


@pytest.mark.parametrize(("function", "ours"), [
    (np.exp, "T.exp"), (np.amax, "T.max"), (np.add.reduce, "T.sum"), (np.sort, "T.sort"),
    (np.linalg.inv, "T.linalg.inv"), (np.linalg.svd, "T.linalg.svd"),
    (np.fft.fft, "T.fft.fft"), (np.fft.fftshift, "T.fft.fftshift"),
])  # fmt: skip
def test_functions_of_numpy_name_the_one_of_the_same_meaning(function, ours):
    """``T.inv`` is ``1 / x``, and ``T.fft`` has functions."""
    with pytest.raises(SymbolicValueError, match=rf"use {ours} of symdnn.tensor"):
        function(T.dmatrix("x"))


@pytest.mark.parametrize(("use", "ours"), [
    (lambda torch, x: torch.exp(x), "use T.exp of"),
    (lambda torch, x: torch.cat([x, x]), "use T.cat of"),
    (lambda torch, x: torch.ones(2, 2).mul(x), "use T.mul of"),
    (lambda torch, x: torch.matmul(torch.ones(2, 2), x), "use T.matmul of"),
    (lambda torch, x: torch.linalg.inv(x), "torch.linalg.inv .* use T.linalg.inv of"),
    (lambda torch, x: torch.fft.fft(x), "use T.fft.fft of"),
    (lambda torch, x: torch.special.erf(x), "use T.erf of"),
    (lambda torch, x: torch.nn.functional.conv2d(x, x), "use T.nnet.conv2d of"),
    (lambda torch, x: torch.nn.functional.cross_entropy(x, x), "T.nnet.softmax_crossentropy"),
    (lambda torch, x: torch.nn.Linear(2, 2)(x), r"T.dot\(x, w\)"),
])  # fmt: skip
@pytest.mark.parametrize("make", [T.dmatrix, lambda name: symdnn.shared(np.ones((2, 2)), name)])
def test_functions_of_pytorch_name_the_one_of_the_same_meaning(use, ours, make):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=ours):
        use(torch, make("x"))


@pytest.mark.parametrize(("name", "ours"), [
    ("exp", "use T.exp of"), ("linalg_inv", "torch.linalg.inv .* use T.linalg.inv of"),
    ("conv2d", "use T.nnet.conv2d of"), ("special_erf", "use T.erf of"),
    ("no_such_function", "symdnn.tensor has no such"),
])  # fmt: skip
def test_what_pytorch_asks_of_a_variable_is_refused(name, ours):
    """Its own protocol, by the name of a function; PyTorch need not be there."""
    named = type("Function", (), {"__name__": name})()
    with pytest.raises(SymbolicValueError, match=ours):
        T.matrix("x").__torch_function__(named, ())


@pytest.mark.parametrize("name", [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "le", "gt", "ge",
    "and_", "or_", "xor", "lshift",
])  # fmt: skip
def test_operators_of_pytorchs_tensors_are_those_of_the_variable(name):
    torch = pytest.importorskip("torch")
    whole = name in ("and_", "or_", "xor", "lshift")
    there = torch.ones(2, 2, dtype=torch.int64 if whole else torch.float64) * 3
    x = T.lmatrix("x") if whole else T.dmatrix("x")
    data = np.ones((2, 2), x.type.dtype) * 2
    made = getattr(operator_module, name)(there, x)
    expected = getattr(operator_module, name)(there.numpy(), data)
    np.testing.assert_array_equal(symdnn.function([x], made)(data), expected)
    assert not there == x  # noqa: SIM201
    assert there != x


def test_equality_is_identity_for_python():
    x, y = T.vectors("x", "y")
    others = [y, np.ones(2), 1, [1.0], "half", None]
    assert x == x
    assert all(x != other for other in others)
    assert not any(x == other or other == x for other in others)
    assert [*others, x].index(x) == 6
    assert y not in {x: 1}
    assert [v == x for v in (y, x)] == [False, True]
    assert repr([x == x, x == y, x != y]) == "[True, False, True]"
    assert hash(x == x) + int(x == x) == 2
    assert f"{x == x} {x == y:d}" == "True 0"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_kept_equality_is_a_bool(protocol):
    x, y = T.vectors("x", "y")
    assert pickle.loads(pickle.dumps([x == x, x == y], protocol)) == [True, False]
    assert copy.deepcopy([x != x, x != y]) == [False, True]
    assert isinstance(copy.copy(x == y), bool)


USES_OF_ELEMENTS = {
    "mean": lambda e, x: T.mean(e), "where": lambda e, x: T.where(e, x, 0),
    "index": lambda e, x: x[e], "cast": lambda e, x: T.cast(e, "float32"),
    "ifelse": lambda e, x: symdnn.ifelse(e, x, x),
    "times": lambda e, x: e * 1.0, "of one": lambda e, x: 1 - e, "and": lambda e, x: e & (x > 0),
    "last": lambda e, x: (x > 0) | e, "not": lambda e, x: ~e, "stack": lambda e, x: T.stack([e, e]),
    "above": lambda e, x: e > 0, "below": lambda e, x: e <= 1, "first": lambda e, x: e[0],
    "power": lambda e, x: 2**e, "remainder": lambda e, x: e % 2, "half": lambda e, x: e // 2,
    "scaled": lambda e, x: x * e, "result": lambda e, x: symdnn.function([x], e),
    "numpy": lambda e, x: np.mean(e), "traced": lambda e, x: symdnn.jit(lambda y: y == 1)(2.0),
}  # fmt: skip


@pytest.mark.parametrize("use", USES_OF_ELEMENTS.values(), ids=USES_OF_ELEMENTS)
def test_an_equality_is_no_expression(use):
    """In PyTorch and NumPy ``==`` compares elements."""
    x, y = T.vectors("x", "y")
    for e in (x == y, x != y, x == 0, np.ones(2) == x, np.equal(x, y)):
        with pytest.raises(SymbolicValueError, match=r"T\.eq\(x, y\)"):
            use(e, x)


def test_an_equality_has_no_methods():
    with pytest.raises(AttributeError, match=r"has no 'mean': .* T\.eq\(x, y\)"):
        (T.ivector() == T.ivector()).mean()


def test_python_rounds_as_numpy_does():
    x = T.dscalar()
    found = symdnn.function([x], [round(x), round(x, 1), round(x, -1)])(12.25)
    np.testing.assert_allclose(found, [12.0, 12.2, 10.0], rtol=1e-15)


TRUTHS = {
    "comparison": lambda x, y: x.sum() > 0,
    "any": lambda x, y: (x > 0).any(),
    "all": lambda x, y: T.all(T.eq(x, y)),
    "nan": lambda x, y: T.isnan(x.sum()),
    "not": lambda x, y: ~(x.sum() > 0),
    "and": lambda x, y: (x.sum() > 0) & (y.sum() > 0),
    "or": lambda x, y: T.logical_or(x.sum() > 0, y.sum() > 0),
    "close": lambda x, y: T.allclose(x, y),
    "equal": lambda x, y: T.array_equal(x, y),
    "inside": lambda x, y: T.isin(x, y).any(),
    "chosen": lambda x, y: T.where(x.sum() > 0, True, False),
}


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_no_branch_is_chosen_by_a_truth_that_a_call_computes(truth, monkeypatch):
    x, y = T.matrices("x", "y")
    with pytest.raises(SymbolicValueError, match="is not known before it runs"):
        assert truth(x, y)
    with pytest.raises(SymbolicValueError, match="is not known before it runs"):
        assert not truth(x, y)
    assert bool(truth(T.constant([[1.0]]), T.constant([[1.0]]))) in (True, False)
    assert bool(x + y)  # as in Theano: a variable that is there
    assert bool(T.vector("m", dtype="bool"))
    monkeypatch.setattr("symdnn.graph.tracing.numpy_calls", {"add"})  # a program of Theano's
    assert bool(T.any(x > 0))
