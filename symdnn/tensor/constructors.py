"""Free variables and constants, under Theano's names.

``T.matrix("x")`` makes a variable of dtype ``floatX``; ``T.fmatrix``, ``T.ivector``, ... are types
that make one when called; ``T.matrices("x", "y")`` or ``T.matrices(2)`` make several. The letters
are ``b w i l`` (int8 to int64), ``f d`` (float32, float64) and ``c z`` (complex64, complex128).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.graph.names.dim import SizeOrName
from symdnn.graph.names.torch_words import makes_tensor
from symdnn.graph.type import TensorType
from symdnn.graph.typing import DtypeLike, TensorLike
from symdnn.graph.variable import Constant, Shared, Variable, as_variable, constant
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elemwise import pad_left
from symdnn.options import as_list

# fmt: off
__all__ = [
    "Constant", "Shared", "SharedVariable", "TensorConstant", "TensorSharedVariable",
    "TensorType", "TensorVariable", "Variable", "as_tensor", "as_tensor_variable", "constant",
    "tensor",
    "scalar", "bscalar", "wscalar", "iscalar", "lscalar", "fscalar", "dscalar", "cscalar",
    "zscalar", "scalars", "iscalars", "lscalars", "fscalars", "dscalars", "cscalars",
    "zscalars",
    "vector", "bvector", "wvector", "ivector", "lvector", "fvector", "dvector", "cvector",
    "zvector", "vectors", "ivectors", "lvectors", "fvectors", "dvectors", "cvectors",
    "zvectors",
    "row", "brow", "wrow", "irow", "lrow", "frow", "drow", "crow", "zrow", "rows", "irows",
    "lrows", "frows", "drows", "crows", "zrows",
    "col", "bcol", "wcol", "icol", "lcol", "fcol", "dcol", "ccol", "zcol", "cols", "icols",
    "lcols", "fcols", "dcols", "ccols", "zcols",
    "matrix", "bmatrix", "wmatrix", "imatrix", "lmatrix", "fmatrix", "dmatrix", "cmatrix",
    "zmatrix", "matrices", "imatrices", "lmatrices", "fmatrices", "dmatrices", "cmatrices",
    "zmatrices",
    "tensor3", "btensor3", "wtensor3", "itensor3", "ltensor3", "ftensor3", "dtensor3",
    "ctensor3", "ztensor3", "tensor3s", "itensor3s", "ltensor3s", "ftensor3s", "dtensor3s",
    "ctensor3s", "ztensor3s",
    "tensor4", "btensor4", "wtensor4", "itensor4", "ltensor4", "ftensor4", "dtensor4",
    "ctensor4", "ztensor4", "tensor4s", "itensor4s", "ltensor4s", "ftensor4s", "dtensor4s",
    "ctensor4s", "ztensor4s",
    "tensor5", "btensor5", "wtensor5", "itensor5", "ltensor5", "ftensor5", "dtensor5",
    "ctensor5", "ztensor5", "tensor5s", "itensor5s", "ltensor5s", "ftensor5s", "dtensor5s",
    "ctensor5s", "ztensor5s",
    "tensor6", "btensor6", "wtensor6", "itensor6", "ltensor6", "ftensor6", "dtensor6",
    "ctensor6", "ztensor6", "tensor6s",
    "tensor7", "btensor7", "wtensor7", "itensor7", "ltensor7", "ftensor7", "dtensor7",
    "ctensor7", "ztensor7", "tensor7s",
]
# fmt: on

TensorVariable = Variable
TensorConstant = Constant
TensorSharedVariable = Shared
SharedVariable = Shared

_LETTERS = ("int8", "int16", "int32", "int64", "float32", "float64", "complex64", "complex128")


@makes_tensor
def as_tensor_variable(x: TensorLike, name: str | None = None, ndim: int | None = None) -> Variable:
    """``x`` as a variable: itself, a constant, or a stack of a list that holds variables.

    With ``ndim`` leading dimensions of size 1 are added, or dropped where they are static.
    """
    v = as_variable(x, name)
    if ndim is None or v.type.ndim == ndim:
        return v
    if v.type.ndim < ndim:
        return pad_left(v, ndim)
    extra = v.type.ndim - ndim
    if not all(v.type.broadcastable[:extra]):
        raise TypeMismatch("as_tensor_variable", f"at most {ndim} dimension(s)", v.type)
    return dimshuffle(v, range(extra, v.type.ndim))


as_tensor = as_tensor_variable


@makes_tensor
def tensor(
    dtype: DtypeLike | None = None,
    broadcastable: Sequence[SizeOrName] | None = None,
    name: str | None = None,
    *,
    shape: Sequence[SizeOrName] | None = None,
) -> Variable:
    """A variable of any type: ``tensor("float32", (False, True))``, or with ``shape=(None, 1)``.

    Sizes that are unknown may have names: ``tensor("float32", ("batch", 784))``
    (:class:`symdnn.Dim`). Raises ``TypeMismatch`` for both or neither of the two.
    """
    if (shape is None) == (broadcastable is None):
        value = "T.constant(value) is a value as a variable" if shape is None else ""
        raise TypeMismatch("tensor", "either broadcastable or shape", "both or neither", value)
    made = TensorType(dtype or config.floatX, broadcastable if shape is None else shape)(name)
    return made  # type: ignore[no-any-return]


def _make(name: str | None, dtype: DtypeLike | None, pattern: tuple[bool, ...]) -> Variable:
    made: Variable = TensorType(dtype or config.floatX, pattern)(name)
    return made


def scalar(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 0-d variable; ``floatX`` by default."""
    return _make(name, dtype, ())


def vector(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 1-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,))


def row(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 2-d variable whose first dimension is statically 1; ``floatX`` by default."""
    return _make(name, dtype, (True, False))


def col(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 2-d variable whose second dimension is statically 1; ``floatX`` by default."""
    return _make(name, dtype, (False, True))


def matrix(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 2-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 2)


def tensor3(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 3-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 3)


def tensor4(name: str | None = None, dtype: Any = None) -> Variable:
    """A 4-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 4)


def tensor5(name: str | None = None, dtype: DtypeLike | None = None) -> Variable:
    """A 5-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 5)


def tensor6(name: str | None = None, dtype: Any = None) -> Variable:
    """A 6-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 6)


def tensor7(name: str | None = None, dtype: Any = None) -> Variable:
    """A 7-d variable; ``floatX`` by default."""
    return _make(name, dtype, (False,) * 7)


def _several(one: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The constructor of several variables: given names, or how many."""

    def make(*names: Any, dtype: DtypeLike | None = None) -> list[Variable | None]:
        """Several variables: one for each name (each letter of a single one), or a number."""
        if len(names) == 1:
            (given,) = names
            if isinstance(given, int):
                names = (None,) * given
            else:
                names = tuple(given if isinstance(given, str) else as_list("names", given, "names"))
        return [one(n) if dtype is None else one(n, dtype=dtype) for n in names]

    return make


def _types(pattern: tuple[bool, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype, pattern) for dtype in _LETTERS)


bscalar, wscalar, iscalar, lscalar, fscalar, dscalar, cscalar, zscalar = _types(())
bvector, wvector, ivector, lvector, fvector, dvector, cvector, zvector = _types((False,))
brow, wrow, irow, lrow, frow, drow, crow, zrow = _types((True, False))
bcol, wcol, icol, lcol, fcol, dcol, ccol, zcol = _types((False, True))
bmatrix, wmatrix, imatrix, lmatrix, fmatrix, dmatrix, cmatrix, zmatrix = _types((False,) * 2)
btensor3, wtensor3, itensor3, ltensor3, ftensor3, dtensor3, ctensor3, ztensor3 = _types(
    (False,) * 3
)
btensor4, wtensor4, itensor4, ltensor4, ftensor4, dtensor4, ctensor4, ztensor4 = _types(
    (False,) * 4
)
btensor5, wtensor5, itensor5, ltensor5, ftensor5, dtensor5, ctensor5, ztensor5 = _types(
    (False,) * 5
)
btensor6, wtensor6, itensor6, ltensor6, ftensor6, dtensor6, ctensor6, ztensor6 = _types(
    (False,) * 6
)
btensor7, wtensor7, itensor7, ltensor7, ftensor7, dtensor7, ctensor7, ztensor7 = _types(
    (False,) * 7
)

scalars, vectors, rows, cols = map(_several, (scalar, vector, row, col))
matrices, tensor3s, tensor4s, tensor5s = map(_several, (matrix, tensor3, tensor4, tensor5))
tensor6s, tensor7s = map(_several, (tensor6, tensor7))

iscalars, lscalars, fscalars, dscalars, cscalars, zscalars = map(
    _several, (iscalar, lscalar, fscalar, dscalar, cscalar, zscalar)
)
ivectors, lvectors, fvectors, dvectors, cvectors, zvectors = map(
    _several, (ivector, lvector, fvector, dvector, cvector, zvector)
)
irows, lrows, frows, drows, crows, zrows = map(_several, (irow, lrow, frow, drow, crow, zrow))
icols, lcols, fcols, dcols, ccols, zcols = map(_several, (icol, lcol, fcol, dcol, ccol, zcol))
imatrices, lmatrices, fmatrices, dmatrices, cmatrices, zmatrices = map(
    _several, (imatrix, lmatrix, fmatrix, dmatrix, cmatrix, zmatrix)
)
itensor3s, ltensor3s, ftensor3s, dtensor3s, ctensor3s, ztensor3s = map(
    _several, (itensor3, ltensor3, ftensor3, dtensor3, ctensor3, ztensor3)
)
itensor4s, ltensor4s, ftensor4s, dtensor4s, ctensor4s, ztensor4s = map(
    _several, (itensor4, ltensor4, ftensor4, dtensor4, ctensor4, ztensor4)
)
itensor5s, ltensor5s, ftensor5s, dtensor5s, ctensor5s, ztensor5s = map(
    _several, (itensor5, ltensor5, ftensor5, dtensor5, ctensor5, ztensor5)
)
