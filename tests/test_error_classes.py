"""Errors are of symdnn's own classes, and of the Python classes that Theano raises there."""

import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import errors, function, shared
from symdnn.errors import SymdnnError

X, M, V, S, T4 = T.tensor3("x"), T.matrix("m"), T.vector("v"), T.scalar("s"), T.tensor4("t")
F32 = np.float32


def _scan_of_another_dtype():
    zero = T.constant(np.float32(0))
    symdnn.scan(lambda k: k + T.dscalar(), outputs_info=[zero], n_steps=3)


#: What is refused, and the Python classes that Theano (or NumPy) raises there.
REFUSALS = {
    "a dropped dimension": (lambda: M.dimshuffle(0), (ValueError,)),
    "a dimension twice": (lambda: M.dimshuffle(0, 0), (ValueError,)),
    "a dimension that is not there": (lambda: M.dimshuffle(0, 2), (ValueError,)),
    "an argument's ndim": (lambda: function([V], V)(np.ones((2, 2), F32)), (TypeError,)),
    "an argument's size": (
        lambda: function([r := T.row()], r)(np.ones((2, 2), F32)),
        (TypeError, ValueError),
    ),
    "a complex cost": (lambda: T.grad(T.zvector().sum(), T.zscalar()), (TypeError,)),
    "a shape that was specified": (
        lambda: function([M], T.specify_shape(M, (2, 3)) * 2)(np.ones((3, 2), F32)),
        (AssertionError, ValueError),
    ),
    "a shape that was computed": (
        lambda: function([M], T.specify_shape(M, (M.shape[1], None)))(np.ones((3, 2), F32)),
        (AssertionError, ValueError),
    ),
    "a shared value's ndim": (
        lambda: shared(np.zeros(2, F32)).set_value(np.zeros((2, 2), F32)),
        (TypeError,),
    ),
    "a shared variable as an input": (lambda: function([w := shared(0.0)], w), (TypeError,)),
    "a shape of unknown length": (lambda: M.reshape(T.lvector()), (ValueError,)),
    "a shape of another length": (lambda: M.reshape((2, 3), ndim=3), (ValueError,)),
    "flatten": (lambda: T.flatten(M, 3), (ValueError,)),
    "addbroadcast": (lambda: T.addbroadcast(M, 2), (ValueError,)),
    "unbroadcast": (lambda: T.unbroadcast(M, 2), (ValueError,)),
    "tensordot": (lambda: T.tensordot(M, M, axes=(0, 1, 2)), (ValueError,)),
    "axes of tensordot": (lambda: T.tensordot(M, M, axes=[[0, 1], [0]]), (ValueError,)),
    "too many axes of tensordot": (lambda: T.tensordot(M, M, axes=3), (ValueError,)),
    "nonzero of a scalar": (lambda: T.nonzero(S), (ValueError,)),
    "diag of a scalar": (lambda: T.diag(S), (ValueError,)),
    "diag of a tensor": (lambda: T.diag(X), (ValueError,)),
    "swapaxes": (lambda: M.swapaxes(0, 2), (IndexError,)),
    "join": (lambda: T.join(2, M, M), (IndexError,)),
    "stack": (lambda: T.stack([M, M], 4), (IndexError,)),
    "split": (lambda: T.split(M, [1, 1], 2, axis=2), (IndexError,)),
    "an axis twice": (lambda: M.sum((0, 0)), (ValueError,)),
    "an axis as a float": (lambda: M.sum(0.5), (TypeError,)),
    "an axis as a string": (lambda: M.max("x"), (TypeError,)),
    "padding with borders": (
        lambda: T.signal.pool.pool_2d(T4, (2, 2), ignore_border=False, pad=(1, 1)),
        (NotImplementedError, ValueError),
    ),
    "padding of a window": (
        lambda: T.signal.pool.pool_2d(T4, (2, 2), ignore_border=True, pad=(2, 2)),
        (NotImplementedError, ValueError),
    ),
    "pooling's mode": (lambda: T.signal.pool.pool_2d(T4, (2, 2), mode="min"), (ValueError,)),
    "a window's size": (lambda: T.signal.pool.pool_2d(T4), (TypeError,)),
    "a state's dtype": (_scan_of_another_dtype, (ValueError, TypeError)),
    "a set value's ndim": (lambda: T.set_subtensor(V[1:], M), (ValueError, TypeError)),
    "a set value's kind": (lambda: T.set_subtensor(T.ivector()[1:], 0.5), (TypeError,)),
    "a cost's ndim": (lambda: symdnn.grad(V, V), (TypeError,)),
    "a dtype": (lambda: M.astype("float31"), (TypeError,)),
    "a dtype that is a variable": (lambda: M.astype(V), (TypeError,)),
    "the truth of a comparison": (lambda: bool(V < 1), (TypeError,)),
    "the length of a variable": (lambda: len(V), (TypeError,)),
    "the elements of a variable": (lambda: list(V), (TypeError,)),
    "a shape of no ints": (lambda: T.zeros("ab"), (TypeError,)),
    "an option": (lambda: V.sort(kind="bogo"), (ValueError,)),
    "batch statistics' axes": (
        lambda: T.nnet.bn.batch_normalization_train(M, V, V, (0, 5)),
        (ValueError,),
    ),
    "a parameter's ndim": (
        lambda: T.nnet.bn.batch_normalization_train(T4, M, M, "spatial"),
        (ValueError,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_class_of_a_refusal(what):
    refused, wanted = REFUSALS[what]
    with pytest.raises(SymdnnError) as raised:
        refused()
    for python in wanted:
        assert isinstance(raised.value, python), type(raised.value).__mro__


def _functions():
    for module in (T, T.nnet, T.signal.pool, T.extra_ops):
        for name, f in vars(module).items():
            if inspect.isfunction(f) and not name.startswith("_"):
                yield pytest.param(f, id=f"{module.__name__.split('.')[-1]}.{name}")


FUNCTIONS = list(_functions())
AXES = ("axis", "axis1", "axis2", "axes", "source", "destination")
#: Arguments by name where a tensor of three dimensions will not do.
OTHERS = {
    "axis": 0, "axis1": 0, "axis2": 1, "axes": 1, "source": 0, "destination": 1, "shape": (2, 3),
    "repeats": 2, "n_splits": 2, "splits_size": [1, 1], "indices": T.ltensor3(), "a_min": 0,
    "tensor_list": [X, X], "tensors": [X, X], "start": 0, "shift": 1, "kth": 1, "depth": 3,
    "indices_or_sections": 2, "chunks": 2, "q": 0.5, "arrays": [X, X], "nb_class": 3,
    "dtype": "float32", "pad_width": 1, "n": 1, "L": 2, "values": X, "ws": (2, 2), "labels": M,
    "targets": M, "reps": 2, "condition": V > 0, "ndim": 2, "newshape": (-1,), "pattern": (0, 1, 2),
    "subscripts": "ijk", "xp": V, "fp": V, "func1d": T.sum, "func": T.sum, "keys": [X, X],
}  # fmt: skip


def _call(f, /, **given):
    """``f`` with plausible arguments, but ``given``."""
    args, words = [], {}
    for p in inspect.signature(f).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            value = given.get(p.name, [X, X])
            args += value if isinstance(value, list) else [value]
        elif p.name in given and p.default is not p.empty:
            words[p.name] = given[p.name]
        elif p.default is p.empty and p.kind is not p.VAR_KEYWORD:
            args.append(given.get(p.name, OTHERS.get(p.name, X)))
    return f(*args, **words)


AXIS_CASES = [
    pytest.param(c.values[0], name, id=f"{c.id}-{name}")
    for c in FUNCTIONS
    for name in inspect.signature(c.values[0]).parameters
    if name in AXES
    and c.id.split(".")[0] != "extra_ops"
    and c.id
    not in (
        "tensor.index_add",
        "tensor.index_copy",
        "tensor.index_reduce",
        "tensor.masked_scatter",
    )  # PyTorch's source has values
]


@pytest.mark.parametrize(("f", "name"), AXIS_CASES)
def test_an_axis_that_is_not_there(f, name):
    for axis in (7, -9, "x", 0.5, [0, "x"]):
        with pytest.raises((ValueError, IndexError)) as raised:
            _call(f, **{name: axis})
        assert isinstance(raised.value, SymdnnError), (axis, raised.value)


BAD = {
    "scalar": S, "vector": V, "matrix": M, "tensor4": T4, "bool": T.tensor3(dtype="bool"),
    "int": T.ltensor3(), "complex": T.ctensor3(), "text": "text", "none": None, "object": object(),
    "ragged": [[1], [1, 2]],
}  # fmt: skip


@pytest.mark.parametrize("f", FUNCTIONS)
def test_whatever_comes_first_is_taken_or_refused_by_an_own_class(f):
    names = list(inspect.signature(f).parameters)
    first = names[0] if names else ""
    star = names and inspect.signature(f).parameters[first].kind is inspect.Parameter.VAR_POSITIONAL
    for what, value in BAD.items():
        error = None
        try:
            _call(f, **{first: [value, value] if star else value})
        except Exception as raised:
            error = raised
        if error is not None:
            assert isinstance(error, SymdnnError), (what, error)
            assert isinstance(error, TypeError | ValueError | IndexError), (what, error)
            assert str(error), what


def test_every_class_has_a_docstring_and_a_python_base():
    own = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SymdnnError)]
    for c in own:
        assert c.__doc__
