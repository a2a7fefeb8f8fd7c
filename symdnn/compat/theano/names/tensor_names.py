"""Names of ``theano.tensor`` and its parts that symdnn's ``T`` lacks."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names import compile_names as compile
from symdnn.compat.theano.names import gof_names as gof
from symdnn.compat.theano.names import scalar_names as scal
from symdnn.compat.theano.names.gradient_names import (
    Lop,
    Rop,
    grad,
    hessian,
    jacobian,
    numeric_grad,
    reading,
    verify_grad,
)
from symdnn.compat.theano.names.types import (
    DisconnectedType,
    Generic,
    ScalarSharedVariable,
    SharedVariable,
    TensorConstant,
    TensorSharedVariable,
    TensorVariable,
    grad_not_implemented,
    grad_undefined,
)
from symdnn.compat.theano.names.user_ops import Apply, MethodNotDefined, Op
from symdnn.compat.theano.settings import config
from symdnn.errors import InputError, NotScalarConstantError, ShapeMismatch, SymbolicValueError
from symdnn.graph.operators import TensorMethods
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Shared, Variable, as_variable
from symdnn.ops.array.getitem import inc_subtensor, set_subtensor
from symdnn.ops.core.gradient_control import consider_constant

__all__ = [
    "Apply", "AsTensorError", "Constant", "DisconnectedType", "EmptyConstantError", "Generic",
    "Lop", "MethodNotDefined", "NoneConst", "NotScalarConstantError", "Op", "Rop",
    "ScalarSharedVariable", "ShapeError", "SharedVariable", "Tensor", "TensorConstant",
    "TensorSharedVariable", "TensorType", "TensorVariable", "Type", "Variable",
    "advanced_inc_subtensor", "advanced_inc_subtensor1", "advanced_set_subtensor",
    "advanced_set_subtensor1", "advanced_subtensor", "advanced_subtensor1", "as_index_variable",
    "bartlett", "bincount", "check_equal_numpy", "compile", "complex_types", "config",
    "consider_constant", "constant", "cov", "cpu_contiguous", "default", "float_types", "gammal",
    "gammau", "gof", "grad", "grad_not_implemented", "grad_undefined", "hessian", "int_types",
    "is_flat", "isinf_", "isnan_", "jacobian", "join_", "makeKeepDims", "make_constant",
    "numeric_grad", "numpy_scalar", "ravel_multi_index", "register_transfer", "scal",
    "scalar_from_tensor", "second", "setdefault", "tensor_copy", "tensor_from_scalar", "transfer",
    "transpose_inplace", "unravel_index", "verify_grad",
]  # fmt: skip

AsTensorError, ShapeError, EmptyConstantError = InputError, ShapeMismatch, NotScalarConstantError
AdvancedIndexingError = AdvancedBooleanIndexingError = SymbolicValueError
Tensor = TensorType
_tensor_py_operators = TensorMethods
NoneConst = None
int_types, complex_types = T.int_dtypes, T.complex_dtypes
float_types = ["float16", "float32", "float64"]
scalar_types = ["b", "w", "i", "l", "f", "d", "c", "z"]
isnan_, isinf_, join_ = T.isnan, T.isinf, T.join
_shared = compile.shared
python_all, python_any = builtins.all, builtins.any
__oplist_constructor_list: list[Any] = []


def constant(
    x: TensorLike, name: str | None = None, ndim: int | None = None, dtype: Any = None
) -> Any:
    """``T.constant``; a NumPy scalar keeps its dtype, also with ``dtype="floatX"``. A list without
    elements is of ``floatX``."""
    if dtype is None and isinstance(x, list | tuple) and not np.size(x):
        dtype = "floatX"
    return T.constant(x, name, ndim, config.floatX if dtype == "floatX" else dtype)


def second(a: TensorLike, b: TensorLike) -> Any:
    """``b`` in the shape of both (Theano's ``fill``)."""
    return T.fill(a, b)


def default(x: object, default: object) -> Any:
    """``x``, or ``default`` where ``x`` is None while the graph is built."""
    other = as_variable(default)
    return other if x is None else reading(as_variable(x), [other])


setdefault = default


def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: TensorLike | None = None, aweights: TensorLike | None = None,
) -> Variable:  # fmt: skip
    """The covariance matrix of the rows of ``m`` (or its columns): NumPy's ``cov``."""
    if fweights is not None or aweights is not None:
        raise NotImplementedError("cov: fweights and aweights are not offered, as in Theano")
    if not rowvar and m.ndim != 1:
        m = m.T
    if y is not None:
        m = T.concatenate([m, y.T if not rowvar and y.ndim != 1 else y], axis=0)
    less = ddof if ddof is not None else (0 if bias else 1)
    count = T.cast(m.shape[1] - less, m.dtype)
    centred = m - m.mean(axis=1, dtype=m.dtype).dimshuffle(0, "x")
    return T.dot(centred, centred.T.conj()) / count


def bartlett(M: TensorLike) -> Variable:
    """The Bartlett window of length ``M``: NumPy's ``bartlett``, in float64."""
    n = T.cast(as_variable(M), "float64")
    k = T.arange(as_variable(M)).astype("float64")
    half = T.maximum(n - 1, 1) / 2
    return T.switch(T.eq(n, 1), T.ones_like(k), 1 - abs(k - half) / half)


def unravel_index(
    indices: object, dims: object, order: str = "C", ndim: int | None = None
) -> list[Variable]:
    """The coordinates of flat ``indices`` in an array of shape ``dims``: NumPy's, as a list.

    ``ndim`` is the length of ``dims``, where it is a vector of unknown length. An index that is out
    of range raises ``AssertionFailed`` in a call.
    """
    if order not in ("C", "F"):
        raise ValueError(f"unravel_index: order={order!r}, wanted 'C' or 'F'")
    way = -1 if order == "F" else 1
    return list(T.unravel_index(as_variable(indices), _sizes(dims, ndim)[::way]))[::way]


def ravel_multi_index(
    multi_index: Any, dims: object, mode: str = "raise", order: str = "C"
) -> Variable:
    """The flat index of coordinates in an array of shape ``dims``: NumPy's.

    With ``mode="raise"`` one that is out of range raises ``AssertionFailed`` in a call.
    """
    if mode not in ("raise", "wrap", "clip") or order not in ("C", "F"):
        raise ValueError(f"ravel_multi_index: mode={mode!r}, order={order!r}")
    coordinates = [as_variable(c) for c in multi_index]
    sizes = _sizes(dims, len(coordinates))
    if mode != "raise":
        settle = (lambda c, n: c % n) if mode == "wrap" else (lambda c, n: T.clip(c, 0, n - 1))
        coordinates = [settle(c, n) for c, n in zip(coordinates, sizes)]
    way = -1 if order == "F" else 1
    flat: Variable = T.ravel_multi_index(coordinates[::way], sizes[::way])
    return flat


def _sizes(dims: Any, ndim: int | None) -> list[Any]:
    if isinstance(dims, Variable):
        length = ndim if ndim is not None else T.get_vector_length(dims)
        return [dims[i] for i in range(length)]
    return list(dims)


def gammau(k: Any, x: TensorLike) -> Variable:
    """The upper incomplete gamma function, not regularised."""
    return T.gammaincc(k, x) * T.gamma(k)


def gammal(k: Any, x: TensorLike) -> Variable:
    """The lower incomplete gamma function, not regularised."""
    return T.gammainc(k, x) * T.gamma(k)


def advanced_subtensor(x: TensorLike, *index: object) -> Variable:
    """``x[index]``."""
    return as_variable(x)[tuple(index)]


advanced_subtensor1 = advanced_boolean_subtensor = advanced_subtensor


def advanced_inc_subtensor(x: TensorLike, y: TensorLike, *index: object) -> Variable:
    """``x`` with ``y`` added at ``x[index]``."""
    return inc_subtensor(as_variable(x)[tuple(index)], y)


def advanced_set_subtensor(x: TensorLike, y: TensorLike, *index: object) -> Variable:
    """``x`` with ``y`` at ``x[index]``."""
    return set_subtensor(as_variable(x)[tuple(index)], y)


advanced_inc_subtensor1, advanced_set_subtensor1 = advanced_inc_subtensor, advanced_set_subtensor
advanced_boolean_inc_subtensor = advanced_inc_subtensor
advanced_boolean_set_subtensor = advanced_set_subtensor


def setsubtensor(x: TensorLike, y: TensorLike, idx_list: Any, inplace: bool = False) -> Variable:
    """Theano 0.1's ``set_subtensor``."""
    return set_subtensor(as_variable(x)[tuple(idx_list)], y)


def incsubtensor(x: TensorLike, y: TensorLike, idx_list: Any, inplace: bool = False) -> Variable:
    """Theano 0.1's ``inc_subtensor``."""
    return inc_subtensor(as_variable(x)[tuple(idx_list)], y)


def as_index_variable(i: object) -> Any:
    """An index as a variable; None and slices as they are."""
    return i if i is None or isinstance(i, slice) else as_variable(i)


def bincount(
    x: object, weights: Any = None, minlength: Any = None, assert_nonneg: bool = False
) -> Variable:
    """``T.bincount``; with ``assert_nonneg`` a negative element is an ``AssertionError``."""
    v = as_variable(x)
    if assert_nonneg:
        v = T.opt.Assert("Input to bincount has negative values!")(v, T.all(v >= 0))
    return T.bincount(v, weights, minlength)


def cpu_contiguous(x: TensorLike) -> Variable:
    """``x`` itself: the compiler lays values out."""
    return as_variable(x)


def _converted(dtype: str) -> Any:
    return lambda x: T.cast(as_variable(x), dtype)


def _allclose(a: Any, b: Any, rtol: float | None = None, atol: float | None = None) -> bool:
    """Whether arrays agree, by Theano's tolerances for the narrower of their dtypes."""
    narrow = [d for d in ("float16", "float32", "complex64")
              if d in (getattr(a, "dtype", None), getattr(b, "dtype", None))]  # fmt: skip
    width = "16" if narrow[:1] == ["float16"] else "32" if narrow else "64"
    limits = {"16": (5e-3, 1e-3), "32": (1e-5, 1e-5), "64": (1e-8, 1e-5)}[width]
    return bool(np.allclose(a, b, atol=limits[0] if atol is None else atol,
                            rtol=limits[1] if rtol is None else rtol))  # fmt: skip


def makeKeepDims(x: object, y: object, axis: Any) -> Variable:
    """``y``, ``x`` reduced over ``axis``, with these dimensions of size 1."""
    v, r = as_variable(x), as_variable(y)
    axes = range(v.ndim) if axis is None else np.atleast_1d(axis)
    dropped = {int(a) % v.ndim for a in axes}
    left = iter(range(r.ndim))
    return r.dimshuffle(["x" if i in dropped else next(left) for i in range(v.ndim)])


def is_flat(v: object, ndim: int | None = None, outdim: int | None = None) -> bool:
    """Whether ``v`` has ``ndim`` dimensions, 1 unless it is given."""
    return bool(as_variable(v).ndim == (ndim or outdim or 1))


def make_constant(args: object) -> Any:
    """Arrays and numbers of nested tuples as constants."""
    if isinstance(args, tuple):
        return tuple(map(make_constant, args))
    return args if args is None or isinstance(args, slice | Variable) else as_variable(args)


def numpy_scalar(data: object) -> Any:
    """The number of an array with one element."""
    array = np.asarray(data)
    if array.size != 1:
        raise NotScalarConstantError(f"wanted one element, got {array.size}")
    return array.reshape(()).item()


def check_equal_numpy(x: TensorLike, y: TensorLike) -> bool:
    """Whether two values are equal in dtype, shape and elements."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y))
    return bool(x == y)


def tensor_from_scalar(x: TensorLike) -> Variable:
    """``x`` itself: scalars are tensors of no dimensions."""
    return as_variable(x)


scalar_from_tensor = tensor_copy = tensor_from_scalar


def transfer(var: TensorLike, target: str) -> Variable:
    """``var`` itself: the compiler places values."""
    return as_variable(var)


def register_transfer(fn: object) -> None:
    """Accepted: the compiler places values."""


def transpose_inplace(x: TensorLike) -> Variable:
    """``x.T``."""
    return T.transpose(x)


def hash_from_ndarray(data: object) -> str:
    """A hash of an array's dtype, shape and bytes."""
    import hashlib

    array = np.ascontiguousarray(data)
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()


def shape_of_variables(fgraph: Any, input_shapes: Any) -> dict[Variable, tuple[int, ...]]:
    """The shapes of a graph's variables for given shapes of its inputs."""
    from symdnn.graph.evaluate import evaluate

    given = {v: np.zeros(s, v.type.numpy) for v, s in input_shapes.items()}
    wanted = [v for n in fgraph.toposort() for v in n.outputs] + list(fgraph.outputs)
    found = dict(zip(wanted, evaluate(wanted, given)))
    return {v: tuple(np.shape(x)) for v, x in {**given, **found}.items()}


def load(path: str, dtype: Any, broadcastable: Any, mmap_mode: Any = None) -> Variable:
    """The array of a .npy file, as a constant that is read now."""
    array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False).astype(dtype)
    made: Shared | Variable = T.constant(array)
    return T.patternbroadcast(made, broadcastable)


def values_eq_approx_always_true(a: TensorLike, b: TensorLike, **words: object) -> bool:
    """True: what a program sets where results are random."""
    return True


def values_eq_approx(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, **words: object
) -> bool:
    """Whether arrays agree."""
    return bool(np.allclose(a, b, rtol, atol, equal_nan=True))


values_eq_approx_remove_inf = values_eq_approx_remove_nan = values_eq_approx
values_eq_approx_remove_inf_nan = values_eq_approx
float16_atol, float32_atol, float64_atol = 5e-3, 1e-5, 1e-8
float16_rtol, float32_rtol, float64_rtol = 1e-3, 1e-5, 1e-5


def __getattr__(name: str) -> Any:
    if name in ("sharedvar", "basic", "elemwise", "subtensor", "extra_ops", "blas"):
        import importlib

        return importlib.import_module(f"theano.tensor.{name}")
    if name.startswith("_convert_to_"):
        return _converted(name.removeprefix("_convert_to_"))
    raise AttributeError(name)


def _types(dtypes: Sequence[str], ndim: int) -> list[TensorType]:
    return [TensorType(d, (None,) * ndim) for d in dtypes]


_INTS, _FLOATS = ("int8", "int16", "int32", "int64"), ("float32", "float64")
_COMPLEX = ("complex64", "complex128")
int_scalar_types, int_vector_types, int_matrix_types = (_types(_INTS, n) for n in range(3))
float_scalar_types, float_vector_types, float_matrix_types = (_types(_FLOATS, n) for n in range(3))
complex_scalar_types, complex_vector_types, complex_matrix_types = (
    _types(_COMPLEX, n) for n in range(3)
)


def extract_constant(x: Any, elemwise: bool = True, only_process_constants: bool = False) -> Any:
    """The number that ``x`` always is, or ``x``."""
    try:
        return T.get_scalar_constant_value(x)
    except NotScalarConstantError:
        return x


def gemm(z: Any, a: Any, x: Any, y: Any, b: Any) -> Variable:
    """``b * z + a * dot(x, y)``, which the compiler makes one call of BLAS."""
    found: Variable = b * as_variable(z) + a * T.dot(x, y)
    return found


gemm_no_inplace = gemm_inplace = gemv = gemv_no_inplace = gemv_inplace = gemm


def ger(A: Any, alpha: Any, x: Any, y: Any) -> Variable:
    """``A + alpha * outer(x, y)``."""
    found: Variable = as_variable(A) + alpha * T.outer(x, y)
    return found


ger_destructive = ger


def shared_constructor(value: Any, name: str | None = None, **words: Any) -> Any:
    """``theano.shared``, by the names of its parts for tensors, numbers and objects."""
    return compile.shared(value, name, **words)


tensor_constructor = scalar_constructor = generic_constructor = shared_constructor


def make_vector(*scalars: object) -> Variable:
    """Scalars, variables or numbers, as a vector of their common dtype."""
    return T.stack(list(scalars))
