"""The table of builders behind the methods of a variable: ``+``, ``.sum()``, ...

``graph`` knows no op. The package ``symdnn.ops`` installs its builders here once, and
:mod:`symdnn.compile` installs ``evaluate``; the methods of :class:`TensorMethods` look them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from symdnn.errors import InputError, SymbolicValueError, SymdnnError
from symdnn.flag_types import nearest
from symdnn.graph.names.elsewhere import advice, no_attribute
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.typing import AxisLike, DtypeLike, ShapeLike, TensorLike
from symdnn.graph.values.numpy_functions import by_method, numpy_calls, refusal
from symdnn.graph.values.sameness import DIFFERENT, SAME

if TYPE_CHECKING:
    from symdnn.graph.pattern import Pattern
    from symdnn.graph.variable import Variable

__all__ = [
    "TensorMethods", "apply", "install_methods", "install_operators", "operator", "or_zeros",
]  # fmt: skip

#: Builders whose result is no variable.
_Others = Literal[
    "evaluate", "function", "get_scalar_constant_value", "nonzero", "repr_html", "unique"
]  # fmt: skip

_table: dict[str, Callable[..., Any]] = {}


#: Methods that have a function of ``symdnn.ops`` as their only text: PyTorch's.
_methods: dict[str, Callable[..., Any]] = {}


def install_methods(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Let ``x.name(...)`` be ``functions[name](x, ...)`` where a variable has no other ``name``."""
    _methods.update(functions)


def install_operators(builders: Mapping[str, Callable[..., Any]]) -> None:
    """Add builders to the table; a second entry of one name is refused."""
    for name, builder in builders.items():
        if _table.setdefault(name, builder) is not builder:
            raise SymdnnError(f"operator {name!r} is installed already")


@overload
def operator(name: _Others) -> Callable[..., Any]: ...


@overload
def operator(name: str) -> Callable[..., Variable]: ...


def operator(name: str) -> Callable[..., Any]:
    """The builder of that name."""
    try:
        return _table[name]
    except KeyError:
        meant = nearest(name, _table)
        advice = (
            f"did you mean {meant!r}?" if meant else "the lists OPERATORS of symdnn/ops name all"
        )
        advice = advice if _table else "import symdnn first"
        raise SymdnnError(f"no operator {name!r} is installed; {advice}") from None


def or_zeros(tangents: Sequence[Variable | None], values: Sequence[Variable]) -> list[Variable]:
    """Tangents of ``values``, with zeros for those that are None."""
    zeros = operator("zeros_like")
    return [zeros(v) if t is None else t for t, v in zip(tangents, values, strict=True)]


#: Binary operators of Python: the method that the other operand may have.
_REFLECTED = {"true_div": "__rtruediv__", "int_div": "__rfloordiv__"}
_REFLECTED |= {name: f"__r{name}__" for name in ("add", "sub", "mul", "mod", "pow", "matmul")}


def apply(name: str, *args: Any, **options: Any) -> Variable:
    """What the builder ``name`` makes; NotImplemented where another operand knows how."""
    if hasattr(type(args[-1]), "with_gradient"):  # a structured value has operators of its own
        return NotImplemented  # type: ignore[no-any-return]
    try:
        return operator(name)(*args, **options)
    except InputError:
        if name in _REFLECTED and isinstance(args[0], TensorMethods):
            other = type(args[1])
            if hasattr(other, _REFLECTED[name]) and other.__module__ not in ("builtins", "numpy"):
                return NotImplemented  # type: ignore[no-any-return]  # its class knows how
        raise


#: Ufuncs that are operators of Python: the name of the builder.
_OPERATOR_OF_UFUNC = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "true_div",
    "true_divide": "true_div", "floor_divide": "int_div", "remainder": "mod", "power": "pow",
    "matmul": "matmul", "bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor",
    "left_shift": "left_shift", "right_shift": "right_shift", "less": "lt", "less_equal": "le",
    "greater": "gt", "greater_equal": "ge",
}  # fmt: skip


class TensorMethods:
    """Operators and methods of a tensor variable, under Theano's and NumPy's names."""

    __slots__ = ()

    @property
    def _advice(self) -> str:
        """The table of what is said of attributes that it does not have."""
        return "SHARED" if hasattr(type(self), "set_value") else "VARIABLE"

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: TensorLike, **options: Any) -> Any:
        # Python's operators on ndarrays call this; np.exp(x) is refused with advice, unless
        # numpy_calls has it.
        if method == "__call__" and ufunc.__name__ in _OPERATOR_OF_UFUNC:
            return apply(_OPERATOR_OF_UFUNC[ufunc.__name__], *inputs)
        if ufunc.__name__ in ("equal", "not_equal"):  # == is identity
            other = inputs[1] if inputs[0] is self else inputs[0]
            other = other[()] if isinstance(other, np.ndarray) else other  # from a NumPy number
            return _is_one(self, other, wanted=ufunc.__name__ == "equal")
        if method == "__call__" and ufunc.__name__ in numpy_calls and len(inputs) == 1:
            return by_method(ufunc.__name__, inputs, options)
        raise refusal(ufunc.__name__ + ("" if method == "__call__" else f".{method}"))

    def __array_function__(self, function: Any, types: object, args: Any, options: Any) -> Any:
        if function.__name__ in numpy_calls and args and isinstance(args[0], TensorMethods):
            return by_method(function.__name__, args, options)
        raise refusal(function.__name__, function.__module__ or "numpy")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: object = (), options: object = None
    ) -> Any:
        # A TypeError of an operator of PyTorch's tensors: Python calls that of the variable then.
        raise refusal(function.__name__, "torch")

    if not TYPE_CHECKING:  # a checker of types would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            method = _methods.get(name)
            if method is not None:
                return partial(method, self)
            raise no_attribute(self, f"{type(self).__name__!r} object", name, self._advice)

        def __dir__(self) -> list[str]:
            return sorted({*object.__dir__(self), *_methods})

        def __array__(self, *args: object, **options: object) -> Any:
            if numpy_calls:  # of Theano's programs: an object, as any other
                found = np.empty((), object)
                found[()] = self
                return found
            raise SymbolicValueError(
                f"NumPy needs the value of {self}: {advice(self._advice)['numpy']}"
            )

        def __setitem__(self, index: object, value: object) -> None:
            raise SymbolicValueError(f"x[...] = y: {advice('VARIABLE')['copy_']}")

        def __delitem__(self, index: object) -> None:
            raise SymbolicValueError(f"del x[...]: {advice('VARIABLE')['copy_']}")

    def __add__(self, other: TensorLike | Pattern) -> Variable:
        return apply("add", self, other)

    def __radd__(self, other: TensorLike | Pattern) -> Variable:
        return apply("add", other, self)

    def __sub__(self, other: TensorLike | Pattern) -> Variable:
        return apply("sub", self, other)

    def __rsub__(self, other: TensorLike | Pattern) -> Variable:
        return apply("sub", other, self)

    def __mul__(self, other: TensorLike | Pattern) -> Variable:
        return apply("mul", self, other)

    def __rmul__(self, other: TensorLike | Pattern) -> Variable:
        return apply("mul", other, self)

    def __truediv__(self, other: TensorLike | Pattern) -> Variable:
        return apply("true_div", self, other)

    def __rtruediv__(self, other: TensorLike | Pattern) -> Variable:
        return apply("true_div", other, self)

    def __floordiv__(self, other: TensorLike) -> Variable:
        return apply("int_div", self, other)

    def __rfloordiv__(self, other: TensorLike) -> Variable:
        return apply("int_div", other, self)

    def __mod__(self, other: TensorLike) -> Variable:
        return apply("mod", self, other)

    def __rmod__(self, other: TensorLike) -> Variable:
        return apply("mod", other, self)

    def __divmod__(self, other: TensorLike) -> tuple[Variable, Variable]:
        return apply("int_div", self, other), apply("mod", self, other)

    def __rdivmod__(self, other: TensorLike) -> tuple[Variable, Variable]:
        return apply("int_div", other, self), apply("mod", other, self)

    def __pow__(self, other: TensorLike) -> Variable:
        return apply("pow", self, other)

    def __rpow__(self, other: TensorLike) -> Variable:
        return apply("pow", other, self)

    def __matmul__(self, other: TensorLike) -> Variable:
        return apply("matmul", self, other)

    def __rmatmul__(self, other: TensorLike) -> Variable:
        return apply("matmul", other, self)

    def __and__(self, other: TensorLike) -> Variable:
        return apply("and_", self, other)

    def __rand__(self, other: TensorLike) -> Variable:
        return apply("and_", other, self)

    def __or__(self, other: TensorLike) -> Variable:
        return apply("or_", self, other)

    def __ror__(self, other: TensorLike) -> Variable:
        return apply("or_", other, self)

    def __xor__(self, other: TensorLike) -> Variable:
        return apply("xor", self, other)

    def __rxor__(self, other: TensorLike) -> Variable:
        return apply("xor", other, self)

    def __lshift__(self, other: TensorLike) -> Variable:
        return apply("left_shift", self, other)

    def __rshift__(self, other: TensorLike) -> Variable:
        return apply("right_shift", self, other)

    def __rlshift__(self, other: TensorLike) -> Variable:
        return apply("left_shift", other, self)

    def __rrshift__(self, other: TensorLike) -> Variable:
        return apply("right_shift", other, self)

    def __invert__(self) -> Variable:
        return apply("invert", self)

    def __neg__(self) -> Variable:
        return apply("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Variable:
        return apply("abs", self)

    def __ceil__(self) -> Variable:
        return apply("ceil", self)

    def __floor__(self) -> Variable:
        return apply("floor", self)

    def __trunc__(self) -> Variable:
        return apply("trunc", self)

    def __round__(self, decimals: int | None = None) -> Variable:
        return apply("round", self, decimals=decimals or 0)

    def __eq__(self, other: object) -> bool:
        return _is_one(self, other)

    def __ne__(self, other: object) -> bool:
        return _is_one(self, other, wanted=False)

    __hash__ = object.__hash__

    def __lt__(self, other: TensorLike) -> Variable:
        return apply("lt", self, other)

    def __le__(self, other: TensorLike) -> Variable:
        return apply("le", self, other)

    def __gt__(self, other: TensorLike) -> Variable:
        return apply("gt", self, other)

    def __ge__(self, other: TensorLike) -> Variable:
        return apply("ge", self, other)

    def __getitem__(self, index: object) -> Variable:
        return apply("getitem", self, index)

    def __contains__(self, value: object) -> bool:
        raise SymbolicValueError(
            f"{value} in {self}: whether a variable has an element is known in a call only; use "
            "T.eq(x, value).any()"
        )

    def __format__(self, spec: str) -> str:
        if spec and spec[-1] in "bcdeEfFgGnoxX%,_":
            if (known := apply("known_number", self)) is not None:
                return format(known, spec)
            raise SymbolicValueError(
                f"the format {spec!r} is one of numbers, and {self} has a value in a call only"
            )
        return format(str(self), spec)

    def __len__(self) -> int:
        raise SymbolicValueError("the length of a symbolic variable is unknown; use x.shape[0]")

    @property
    def shape(self) -> Variable:
        """The shape as a symbolic int64 vector, to which ``+`` joins a tuple."""
        return apply("tuple_shape", self)

    @property
    def size(self) -> Variable:
        """The number of elements as a symbolic int64 scalar.

        ``x.size()`` is the shape and ``x.size(0)`` an entry of it, as in PyTorch.
        """
        return apply("callable_size", self)

    @property
    def at(self) -> Any:
        """JAX's way to a tensor with another part: ``x.at[index].set(y)``, ``.add(y)``, ..."""
        return operator("indexed")(self)

    @property
    def mT(self) -> Variable:
        """The last two dimensions exchanged."""
        return apply("swapaxes", self, -1, -2)

    @property
    def T(self) -> Variable:
        """The transpose (all dimensions reversed)."""
        return apply("transpose", self)

    @property
    def real(self) -> Variable:
        """The real part."""
        return apply("real", self)

    @property
    def imag(self) -> Variable:
        """The imaginary part."""
        return apply("imag", self)

    def conj(self) -> Variable:
        """The complex conjugate."""
        return apply("conj", self)

    conjugate = conj

    def astype(self, dtype: DtypeLike) -> Variable:
        """The same values in another dtype."""
        return apply("cast", self, dtype)

    def copy(self, name: str | None = None) -> Variable:
        """A new variable with the same value."""
        return apply("copy", self, name)

    def dimshuffle(self, *pattern: object) -> Variable:
        """Reorder, drop (static 1) and insert (``'x'``) dimensions."""
        if len(pattern) == 1 and isinstance(pattern[0], list | tuple):
            pattern = tuple(pattern[0])
        return apply("dimshuffle", self, pattern)

    def transpose(self, *axes: object) -> Variable:
        """Dimensions reordered by ``axes`` (reversed when none are given).

        Two axes of a tensor that has more are exchanged, as in PyTorch.
        """
        if len(axes) == 1 and isinstance(axes[0], list | tuple):
            axes = tuple(axes[0])
        return apply("transpose_of", self, axes or None)

    def swapaxes(self, axis1: int, axis2: int) -> Variable:
        """Two dimensions exchanged."""
        return apply("swapaxes", self, axis1, axis2)

    def reshape(self, shape: ShapeLike, *rest: int | Variable, ndim: int | None = None) -> Variable:
        """The same elements in another shape; one entry may be -1."""
        return apply("reshape", self, (shape, *rest) if rest else shape, ndim=ndim)

    @torch_words("flatten", "start_dim", "end_dim")
    def flatten(self, ndim: int = 1, end_dim: int | None = None) -> Variable:
        """The first ``ndim - 1`` dimensions kept, the rest joined into one.

        ``flatten(0, 1)`` is PyTorch's: it joins the dimensions from the first to the second.
        """
        if end_dim is not None:
            return self.flatten(start_dim=ndim, end_dim=end_dim)  # type: ignore[call-arg]
        return apply("flatten", self, ndim)

    def ravel(self) -> Variable:
        """All elements as a vector."""
        return apply("flatten", self, 1)

    @torch_words()
    def squeeze(self, axis: AxisLike = None) -> Variable:
        """Static-1 dimensions dropped."""
        return apply("squeeze", self, axis)

    def repeat(self, repeats: object, axis: object = None, *more: object) -> Variable:
        """Each element repeated along ``axis``.

        With more numbers, or with one that is no axis, it is PyTorch's: :meth:`tile`.
        """
        return apply("repeat_of", self, repeats, axis, *more)

    @torch_words()
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
        """The diagonal over two axes."""
        return apply("diagonal", self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
        """The sum of the diagonal over two axes."""
        return apply("trace", self, offset, axis1, axis2)

    def take(self, indices: TensorLike, axis: int | None = None, mode: str = "raise") -> Variable:
        """Elements by integer index along ``axis``."""
        return apply("take", self, indices, axis, mode)

    def compress(self, condition: TensorLike, axis: int | None = None) -> Variable:
        """The entries along ``axis`` for which ``condition`` holds."""
        return apply("compress", condition, self, axis)

    def searchsorted(self, v: TensorLike, side: str = "left", sorter: object = None) -> Variable:
        """The indices at which the elements of ``v`` keep this sorted vector sorted."""
        return apply("searchsorted", self, v, side, sorter)

    def nonzero(self, return_matrix: bool = False, as_tuple: bool = True) -> Any:
        """Indices of the elements that are not zero."""
        return operator("nonzero")(self, return_matrix, as_tuple)

    def nonzero_values(self) -> Variable:
        """The elements that are not zero, as a vector."""
        return apply("nonzero_values", self)

    def fill(self, value: TensorLike) -> Variable:
        """``value`` in the shape of this variable."""
        return apply("fill", self, value)

    def zeros_like(self, dtype: DtypeLike | None = None) -> Variable:
        """Zeros of this shape."""
        return apply("zeros_like", self, dtype)

    def ones_like(self, dtype: DtypeLike | None = None) -> Variable:
        """Ones of this shape."""
        return apply("ones_like", self, dtype)

    def dot(self, other: TensorLike) -> Variable:
        """Matrix product, of any ranks."""
        return apply("dot", self, other)

    __dot__ = dot

    def choose(self, choices: object, mode: str = "raise") -> Variable:
        """Elements picked from ``choices`` by this integer variable."""
        return apply("choose", self, choices, mode)

    def transfer(self, target: str) -> Any:
        """The variable itself, as Theano's method of that name: the compiler places values."""
        return self

    def get_scalar_constant_value(self) -> Any:
        """The number that this variable is known to be; else ``NotScalarConstantError``."""
        return operator("get_scalar_constant_value")(self)

    def eval(self, inputs_to_values: Mapping[Any, Any] | None = None) -> Any:
        """The value, compiled and computed now, for these values of the inputs."""
        values = {} if inputs_to_values is None else inputs_to_values
        return operator("evaluate")(self, values)


#: What a program may mean to compare with the elements of a variable.
_COMPARED = (TensorMethods, int, float, complex, list, tuple, np.ndarray, np.generic)


def _is_one(x: TensorMethods, other: object, wanted: bool = True) -> bool:
    """Whether Python's ``x == other`` is ``wanted``: for one variable, and for equal sizes."""
    if x is not other and not isinstance(other, _COMPARED):
        return NotImplemented  # type: ignore[no-any-return]
    same = x is other or bool(_table["equal_sizes"](x, other))
    return SAME if same == wanted else DIFFERENT
