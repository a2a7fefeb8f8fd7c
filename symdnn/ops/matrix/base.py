"""What ops on stacks of matrices share: types, shapes, batches, and references matrix by matrix.

The last two dimensions are a matrix, those before them count the matrices of a stack. Gradients of
complex matrices are those of :class:`~symdnn.ops.elemwise.Elemwise`: ``dC/dx + i dC/dy``, so a
transpose in a formula for real matrices is an adjoint here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import LinAlgError, NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.dims import DimT, same_dim
from symdnn.graph.op import Axes, Batched, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.array.create import tril, triu
from symdnn.ops.core.dtype import float_of, is_narrow_float
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.lanes import same_for_all
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.elementwise.arithmetic import true_div
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elemwise import conjugate, like
from symdnn.ops.linalg.dot import matmul

__all__ = [
    "DTYPES", "ON_ERROR", "MatrixOp", "adjoint", "column", "each_matrix", "failed",
    "first_columns", "hermitian_of", "is_square", "matrices", "matrix_of", "mm", "on_error",
    "real_dtype", "row", "safe_ratio", "square_dim", "transposed", "triangle_gradient",
]  # fmt: skip

DTYPES = ("float32", "float64", "complex64", "complex128")
ON_ERROR = ("raise", "nan")


class MatrixOp(Op):
    """Base of ops on stacks of matrices of one float or complex dtype.

    A subclass defines ``dims``, the last dimensions of each output from those of the inputs, where
    the output is not one square matrix as the input is.
    ``on_error`` says what comes of a matrix for which there is no result: ``"raise"`` a
    :class:`~symdnn.errors.LinAlgError`, ``"nan"`` a result of NaN in its place in the stack.
    """

    abstract: ClassVar[bool] = True
    #: The dtypes of outputs as functions of the input's; those left out have the input's.
    out_dtypes: ClassVar[dict[int, Callable[[str], str]]] = {}
    on_error: str = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise OptionError(
                f"{type(self).__name__}: on_error is one of {ON_ERROR}, got {self.on_error!r}"
            )

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        """The last dimensions of the outputs; by default those of a square input."""
        n = square_dim(self, matrices[0])
        return [(n, n)]

    def infer(self, *inputs: TensorType) -> Any:
        for t in inputs:
            if not isinstance(t, TensorType) or t.dtype not in DTYPES or t.ndim < 2:
                raise TypeMismatch(self, "matrices of float or complex dtype", list(inputs))
        if len({(t.dtype, t.ndim) for t in inputs}) != 1:
            raise TypeMismatch(self, "stacks of one dtype and ndim", list(inputs))
        lead = lead_dims(self, inputs, [t.shape for t in inputs])
        found = self.dims(*[t.shape[-2:] for t in inputs])
        dtype = inputs[0].dtype
        types = [
            TensorType(self.out_dtypes.get(i, str)(dtype), (*lead, *d)) for i, d in enumerate(found)
        ]
        return types[0] if len(types) == 1 else tuple(types)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        lead = lead_dims(self, types, shapes)
        return [(*lead, *d) for d in self.dims(*[s[-2:] for s in shapes])]

    def results(self, node: Apply) -> Any:
        """The only output, or a tuple of several."""
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        wide = [same_for_all(v) if a is None else v for v, a in zip(inputs, axes, strict=True)]
        outputs = self.make_node(*wide).outputs
        return outputs, [0] * len(outputs)


def lead_dims(op: Op, types: Types, shapes: Sequence[Sequence[DimT]]) -> tuple[DimT, ...]:
    """The dimensions that count matrices: equal ones, or a static 1 that broadcasts."""
    out = []
    for i in range(types[0].ndim - 2):
        sizes = [s[i] for t, s in zip(types, shapes, strict=True) if t.shape[i] != 1]
        known = [d for d in sizes if d is not None]
        got = [tuple(s) for s in shapes]
        wanted = "stacks of equal sizes, or with a static 1"
        out.append(1 if not sizes else same_dim(op, known, wanted, got) if known else None)
    return tuple(out)  # type: ignore[arg-type]


def square_dim(op: Op, matrix: tuple[Any, ...]) -> Any:
    """The size of square matrices; raises :class:`~symdnn.errors.ShapeMismatch` for others."""
    known = [d for d in matrix if d is not None]
    return same_dim(op, known, "square matrices", matrix) if known else None


def is_square(a: Variable) -> bool:
    """Whether the matrices are known to be square."""
    m, n = a.type.shape[-2:]
    return m is not None and m == n


def first_columns(op: Op, cotangent: Variable, count: Any) -> Variable:
    """The cotangent of so many columns of a square matrix; a check that the others have none."""
    text = (
        f"{op}: the vectors beside the first min(m, n) are no function of the matrix, so a cost "
        "that depends on them has no gradient. Use the reduced factors: full_matrices=False of "
        "svd, mode='reduced' of qr"
    )
    others = cotangent[..., count:]
    none = operator("eq")(others, like(0, others))
    return assert_(cotangent[..., :count], none, message=text)


def real_dtype(dtype: str) -> str:
    """The dtype of a complex number's parts; a real one itself."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


# -- operands -------------------------------------------------------------------------------------


def matrices(
    name: str, *values: TensorLike, ndim: int = 2, factored: bool = True
) -> list[Variable]:
    """Operands as floating or complex tensors of one dtype, ints cast as ``T.exp`` casts them.

    Raises :class:`~symdnn.errors.TypeMismatch` for fewer than ``ndim`` dimensions, and, if they
    are ``factored``, for 16-bit floats, which LAPACK does not have.
    """
    vs = [as_variable(v) for v in values]
    if any(not isinstance(v.type, TensorType) for v in vs):
        raise TypeMismatch(name, "matrices", [v.type for v in vs])
    vs = alike(vs)
    dtype = float_of(vs[0].type.dtype)
    if dtype not in DTYPES and (factored or not is_narrow_float(dtype)):
        do = "LAPACK and cuSOLVER have no 16-bit floats: cast it to float32"
        raise TypeMismatch(name, f"one of {', '.join(DTYPES)}", [v.type for v in vs], do)
    for v in vs:
        if v.type.ndim < ndim:
            wanted = "a matrix or a stack of them" if ndim == 2 else f"at least {ndim} dimensions"
            raise NdimMismatch(name, wanted, v.type)
    return [v if v.type.dtype == dtype else operator("cast")(v, dtype) for v in vs]


def matrix_of(name: str, value: TensorLike) -> Variable:
    """:func:`matrices` of a single one."""
    return matrices(name, value)[0]


def on_error(check: bool) -> str:
    """The field ``on_error`` of an op for the argument ``check`` of its builder."""
    return "raise" if check else "nan"


# -- expressions ----------------------------------------------------------------------------------


def transposed(x: Variable) -> Variable:
    """Each matrix transposed."""
    n = x.type.ndim
    return x.dimshuffle([*range(n - 2), n - 1, n - 2])


def adjoint(x: Variable) -> Variable:
    """Each matrix transposed and conjugated."""
    found: Variable = conjugate(transposed(x))
    return found


def mm(*factors: Variable) -> Variable:
    """The product of stacks of matrices, from left to right."""
    x, *rest = factors
    for y in rest:
        x = matmul(x, y)
    return x


def column(v: Variable) -> Variable:
    """Vectors as matrices of one column: they scale rows."""
    return v.dimshuffle([*range(v.type.ndim), "x"])


def row(v: Variable) -> Variable:
    """Vectors as matrices of one row: they scale columns."""
    n = v.type.ndim
    return v.dimshuffle([*range(n - 1), "x", n - 1])


def safe_ratio(numerator: Variable, denominator: Variable, none: Variable) -> Variable:
    """``numerator / denominator``, and 0 where ``none`` holds, with gradients that are finite."""
    divisor = switch(none, like(1, denominator), denominator)
    ratio = true_div(numerator, divisor)
    return switch(none, like(0, ratio), ratio)


def triangle_gradient(symmetric: Variable, lower: bool) -> Variable:
    """The gradient with respect to the triangle that is read, from that of a Hermitian matrix.

    An element beside the diagonal stands for two elements of the matrix.
    """
    both = symmetric + adjoint(symmetric)
    return (tril(both, -1) if lower else triu(both, 1)) + _real_diagonal(symmetric)


def hermitian_of(part: Variable, lower: bool) -> Variable:
    """The Hermitian matrix of which a triangle is given."""
    half = tril(part, -1) if lower else triu(part, 1)
    return half + adjoint(half) + _real_diagonal(part)


def _real_diagonal(x: Variable) -> Variable:
    """The diagonal of each matrix without imaginary parts, and zeros beside it."""
    diagonal = tril(triu(x))
    if not diagonal.type.is_complex:
        return diagonal
    return operator("complex")(diagonal.real, diagonal.real.zeros_like())


# -- references -----------------------------------------------------------------------------------


def failed(op: Any, index: int, what: str) -> LinAlgError:
    """The error of a matrix of a stack: what it is not."""
    do = "check=False (on_error='nan') gives NaN for it instead"
    return LinAlgError(f"{op}: matrix {index} of the stack is {what}. {do}")


def each_matrix(
    op: Any, function: Callable[..., Any], what: str, outputs: Sequence[tuple[Any, Any]],
    *stacks: Array, at_once: bool = False,
) -> list[Array]:  # fmt: skip
    """``function`` of each matrix of stacks that broadcast, by NumPy or SciPy, as the outputs.

    ``outputs`` are the last dimensions and the dtype of each. Where it raises NumPy's
    ``LinAlgError`` the matrix is ``what``: an error, or a result of NaN. With ``at_once`` the
    function takes whole stacks, and single matrices only if one of them has no result.
    """
    if at_once:
        try:
            with np.errstate(all="ignore"):
                results = function(*stacks)
            results = results if isinstance(results, tuple | list) else [results]
            return [np.asarray(r).astype(d, copy=False) for r, (_, d) in zip(results, outputs)]
        except np.linalg.LinAlgError:
            pass
    lead = np.broadcast_shapes(*[s.shape[:-2] for s in stacks])
    wide = [np.broadcast_to(s, lead + s.shape[-2:]) for s in stacks]
    found = [np.empty((*lead, *dims), dtype) for dims, dtype in outputs]
    for number, i in enumerate(np.ndindex(*lead)):
        try:
            with np.errstate(all="ignore"):
                parts = function(*[s[i] for s in wide])
        except np.linalg.LinAlgError as error:
            if op.on_error == "raise":
                raise failed(op, number, what) from error
            parts = [_nothing(out.dtype) for out in found]
        for out, part in zip(found, parts if isinstance(parts, tuple | list) else [parts]):
            out[i] = part
    return found


def _nothing(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind in "fc" else 0
