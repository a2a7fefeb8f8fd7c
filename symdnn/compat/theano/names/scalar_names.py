"""Names of ``theano.scalar``: scalar types, and elementwise ops of a program's own."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names.class_names import OpName, stand_in
from symdnn.compat.theano.names.elementwise_names import elementwise_function
from symdnn.compat.theano.names.types import TensorConstant, TensorVariable
from symdnn.compat.theano.names.user_ops import Apply, Op
from symdnn.graph.op import Host, Shapes
from symdnn.graph.traverse import toposort
from symdnn.graph.type import DTYPES, TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.dtype import upcast as _upcast
from symdnn.ops.elementwise import arithmetic, comparison, math, rounding, special
from symdnn.ops.elemwise import Elemwise, apply_elemwise

__all__ = [
    "BinaryScalarOp", "Composite", "Scalar", "ScalarConstant", "ScalarOp", "ScalarVariable",
    "UnaryScalarOp", "as_scalar", "bool", "complex128", "complex64", "complexs", "complexs128",
    "complexs64", "discrete_types", "elementwise", "float16", "float32", "float64", "float_out",
    "float_types", "floats", "get_scalar_type", "int16", "int32", "int64", "int8", "int_out",
    "ints", "same_out", "same_out_float_only", "specific_out", "transfer_type", "uint16",
    "uint32", "uint64", "uint8", "upcast", "upcast_out", "upgrade_to_float",
    "upgrade_to_float_no_complex",
]  # fmt: skip


class ScalarType(TensorType):
    """The type of a number, a tensor of no dimensions; as text its dtype, as Theano's."""

    def __str__(self) -> str:
        return self.dtype

    def __eq__(self, other: object) -> Any:
        return isinstance(other, TensorType) and (self.dtype, ()) == (other.dtype, other.shape)

    __hash__ = TensorType.__hash__


bool, int8, int16, int32, int64 = (
    ScalarType(d) for d in ("bool", "int8", "int16", "int32", "int64")
)
uint8, uint16, uint32, uint64 = (ScalarType(d) for d in ("uint8", "uint16", "uint32", "uint64"))
float16, float32, float64 = (ScalarType(d) for d in ("float16", "float32", "float64"))
complex64, complex128 = ScalarType("complex64"), ScalarType("complex128")
discrete_types = (bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64)
int_types, uint_types = discrete_types[1:5], discrete_types[5:]
float_types, complex_types = (float16, float32, float64), (complex64, complex128)
continuous_types = float_types + complex_types
all_types = discrete_types + continuous_types
discrete_dtypes = tuple(t.dtype for t in discrete_types)
#: The parts that a composed scalar op can't be made of are named by what T has.
COMPOSITE = "write the expression with T: elementwise ops are fused by the compiler"


def Scalar(dtype: str) -> TensorType:
    """The type of a number: a tensor of no dimensions."""
    return ScalarType(dtype)


get_scalar_type = Scalar


class ScalarVariable(TensorVariable):
    """Theano's class of variables that are numbers: tensors of no dimensions."""

    @staticmethod
    def holds(v: object) -> builtins.bool:
        """Whether ``v`` is a tensor variable of no dimensions."""
        return isinstance(v, TensorVariable) and v.ndim == 0


class ScalarConstant(TensorConstant):
    """Theano's class of constants that are numbers."""

    @staticmethod
    def holds(v: object) -> builtins.bool:
        """Whether ``v`` is a constant of no dimensions."""
        return isinstance(v, TensorConstant) and v.ndim == 0


def upcast(dtype: Any, *dtypes: Any) -> str:
    """The dtype of arithmetic on these dtypes, by the flags ``floatX`` and ``cast_policy``."""
    return _upcast(*(TensorType(d).dtype for d in (dtype, *dtypes)))


def as_scalar(x: TensorLike, name: str | None = None) -> Variable:
    """``x`` as a variable of no dimensions."""
    v = as_variable(x, name)
    if v.ndim:
        raise TypeError(f"as_scalar: {v} has {v.ndim} dimensions")
    return v


constant = as_scalar


def _numbers(make: Callable[..., Any]) -> Callable[..., Any]:
    """``floats("x", "y")``: variables of these names, or of a number without names."""

    def made(*names: object) -> Any:
        """Variables of these names; an int makes so many without names."""
        if len(names) == 1 and isinstance(names[0], builtins.int):
            names = (None,) * names[0]
        return [make(n) for n in names] if len(names) > 1 else make(*names)

    return made


floats, ints = _numbers(lambda n=None: T.scalar(n)), _numbers(lambda n=None: int64(n))
complexs64, complexs128 = _numbers(complex64), _numbers(complex128)
complexs = complexs128


def same_out(*types: object) -> tuple[Any, ...]:
    """The output has the type of the first input."""
    return (types[0],)


same_out_nocomplex = same_out_float_only = same_out_nobool = same_out
identity_types = same_out


def upcast_out(*types: Any) -> tuple[Any, ...]:
    """The output has the dtype to which the inputs' are promoted."""
    return (TensorType(_upcast(*(t.dtype for t in types))),)


upcast_out_no_complex = upcast_out_nobool = upcast_out


def float_out(*types: object) -> tuple[Any, ...]:
    """The output is of ``floatX``."""
    return (TensorType("floatX"),)


def int_out(*types: object) -> tuple[Any, ...]:
    """The output is of int64."""
    return (int64,)


float_out_nocomplex, int_out_nocomplex = float_out, int_out


class transfer_type:
    """Preferences of output types: those of the inputs at these places, or these types."""

    def __init__(self, *transfer: Any) -> None:
        self.transfer = transfer

    def __call__(self, *types: Any) -> tuple[Any, ...]:
        """The types of the outputs."""
        return tuple(types[t] if isinstance(t, builtins.int) else t for t in self.transfer)


class specific_out(transfer_type):
    """Preference of output types: these types."""


def upgrade_to_float(*types: Any) -> tuple[Any, ...]:
    """As :func:`upcast_out`; ints become floats: float32 of at most 16 bits, else float64."""
    wide = TensorType(_upcast(*(t.dtype for t in types)))
    if wide.is_discrete:
        return (float32 if wide.numpy.itemsize <= 2 else float64,)
    return (wide,)


upgrade_to_float_no_complex = upgrade_to_float64 = upgrade_to_float


class ScalarOp(Op):
    """Theano's base of scalar ops: ``impl`` computes numbers, ``grad`` is elementwise.

    An instance applies to tensors, as ``Elemwise`` of it does.
    """

    abstract: ClassVar[Any] = True
    nin = -1
    nout = 1

    def __init__(self, output_types_preference: Any = None, name: str | None = None) -> None:
        self.name = name
        if output_types_preference is not None:
            self.output_types_preference = output_types_preference

    def impl(self, *inputs: object) -> Any:
        """The result for numbers (or arrays)."""
        raise NotImplementedError(f"{type(self).__name__}.impl")

    def output_types(self, types: Sequence[Any]) -> Any:
        """The types of the outputs from those of the inputs."""
        return getattr(self, "output_types_preference", upcast_out)(*types)

    def make_node(self, *inputs: object, **words: object) -> Any:
        """The elementwise node on tensors."""
        from symdnn.ops.elemwise import broadcast_static, pad_left

        given = [as_variable(i) for i in inputs]
        if self.nin >= 0 and len(given) != self.nin:
            raise TypeError(f"{self}: wanted {self.nin} inputs, got {len(given)}")
        ndim = max((v.ndim for v in given), default=0)
        given = [pad_left(v, ndim) for v in given]
        shape = broadcast_static(self, [v.type for v in given])
        scalars = [TensorType(v.dtype) for v in given]
        return Apply(
            self, given, [TensorType(t.dtype, shape)() for t in self.output_types(scalars)]
        )

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: object = None) -> None:
        """``impl`` of each element."""
        function = np.frompyfunc(self.impl, len(inputs), self.nout)
        found = function(*inputs)
        results = found if self.nout > 1 else (found,)
        for cell, value, output in zip(output_storage, results, node.outputs):
            cell[0] = np.asarray(value).astype(output.type.numpy)

    def shapes(self, types: Any, shapes: Any, host: Host) -> Shapes | None:
        from symdnn.ops.elemwise import broadcast_dims

        return [broadcast_dims(self, types, shapes)] * self.nout

    def vjp(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        from symdnn.ops.elemwise import unbroadcast

        grads = super().vjp(inputs, outputs, cotangents)
        return [None if g is None else unbroadcast(g, v) for v, g in zip(inputs, grads)]

    def __str__(self) -> str:
        return getattr(self, "name", None) or type(self).__name__

    def __eq__(self, other: object) -> Any:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(type(self))


class UnaryScalarOp(ScalarOp):
    """A scalar op of one operand."""

    abstract: ClassVar[Any] = True
    nin = 1


class BinaryScalarOp(ScalarOp):
    """A scalar op of two operands."""

    abstract: ClassVar[Any] = True
    nin = 2


class Composite:
    """Theano's scalar op of an expression: ``Composite([x, y], [x * y + x])`` of scalar variables.

    Called with tensors it is the expression of these, as ``Elemwise(Composite(...))`` is: fusing
    elementwise ops is the compiler's work. Raises ``TypeError`` for a part that is no scalar op.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.nin, self.nout = len(self.inputs), len(self.outputs)
        self._nodes = toposort(self.outputs, blockers=self.inputs)
        for node in self._nodes:
            if not isinstance(node.op, Elemwise | ScalarOp):
                raise TypeError(f"Composite: {node.op} is no scalar op; {COMPOSITE}")

    def __call__(self, *operands: TensorLike) -> Any:
        """The outputs, of these operands: one, or a list of several."""
        if len(operands) != self.nin:
            raise TypeError(f"Composite: wanted {self.nin} operands, got {len(operands)}")
        made = dict(zip(self.inputs, map(as_variable, operands)))
        for node in self._nodes:
            given = [made.get(v, v) for v in node.inputs]
            op: Any = node.op
            found = apply_elemwise(op, *given) if isinstance(op, Elemwise) else op(*given)
            results = found if isinstance(found, list | tuple) else [found]
            made.update(zip(node.outputs, results))
        found = [made.get(v, v) for v in self.outputs]
        return found[0] if self.nout == 1 else found


def elementwise(scalar_op: Any) -> Callable[..., Any]:
    """What ``Elemwise(scalar_op)`` makes: a function of tensors."""
    if callable(scalar_op):
        return scalar_op  # type: ignore[no-any-return]
    raise TypeError(f"Elemwise: {scalar_op!r} is no scalar op")


_CLASSES = (arithmetic, comparison, math, rounding, special)
_OLD = {
    "Add": "Add", "Second": "Fill", "TrueDiv": "TrueDiv", "LT": "Lt", "GT": "Gt", "LE": "Le",
    "GE": "Ge", "EQ": "Eq", "NEQ": "Neq", "AND": "And", "OR": "Or", "XOR": "Xor",
    "ScalarMaximum": "Maximum", "ScalarMinimum": "Minimum", "IsNan": "IsNan", "IsInf": "IsInf",
}  # fmt: skip


@cache
def _stand_in(name: str) -> OpName | None:
    """Theano's scalar class ``name``: an instance, of any arguments, is the function of tensors."""
    found = (getattr(module, _OLD.get(name, name), None) for module in _CLASSES)
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Elemwise)]
    if not kinds:
        return None
    path = f"{kinds[0].__module__.removeprefix('symdnn.ops.')}.{kinds[0].__name__}"

    def function(*operands: Any) -> Variable:
        return apply_elemwise(kinds[0](), *operands)

    return cast(OpName, stand_in(name, lambda *args, **words: function, path))


def __getattr__(name: str) -> Any:
    """``exp``, ``add``, ...: the functions of T; ``Exp``, ``Add``, ...: the classes of ops."""
    if name[:1].isupper() and (stand_in := _stand_in(name)) is not None:
        return stand_in
    if (dtype := name.removeprefix("convert_to_")) in DTYPES and dtype != name:
        return elementwise_function(name, lambda x: T.cast(x, dtype))
    function = {"identity": "tensor_copy", "second": "fill"}.get(name, name)
    found = None if name.startswith("_") else getattr(T, function, None)
    if callable(found):
        return elementwise_function(function, found)
    if name in DTYPES:
        return TensorType(name)
    raise AttributeError(name)
