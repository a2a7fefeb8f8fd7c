"""The base of elementwise ops, and the builder that aligns their operands.

Operands have equal ndim: :func:`apply_elemwise` adds leading dimensions of static size 1. Only a
static 1 broadcasts, and a slice of at most one element (``x[:, :1]``), which is declared to be 1;
other unknown dimensions must be equal when a plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NdimMismatch, NonDifferentiable, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, Shape, common, known, names_advice
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.origin import Hints
from symdnn.graph.pattern import Pattern
from symdnn.graph.type import TensorType, dtype_name, numpy_dtype, tensor_type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Apply, Constant, Variable, as_variable, constant
from symdnn.ops.core.dtype import float_of, is_narrow_float, promote, upcast, work_dtype
from symdnn.ops.core.lanes import same_for_all
from symdnn.ops.core.python_numbers import (
    is_number,
    kind_of_number,
    narrowed,
    number_constant,
    settled,
)
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.core.short_axes import with_short_axes_declared
from symdnn.ops.core.unrounded import note_padded, note_unrounded

__all__ = [
    "Elemwise",
    "FloatElemwise",
    "apply_elemwise",
    "as_computed",
    "broadcast_static",
    "conjugate",
    "kind_of",
    "like",
    "unbroadcast",
]


class Elemwise(Op):
    """An op that works on each element; ``function`` is its NumPy ufunc (or a vectorised stand-in).

    A subclass defines ``function`` and :meth:`slope` (one operand) or :meth:`scalar_vjp` (several),
    for operands of equal shapes; broadcasting, ``jvp``, types and shapes are handled here.

    The gradient of a real cost C with respect to a complex ``z = x + iy`` is ``dC/dx + i dC/dy``:
    the vjp is the adjoint under the inner product ``Re(conj(a) b)``, so a holomorphic ``f`` gives
    ``cotangent * conj(f'(z))``.
    """

    never_fails: ClassVar[bool] = True

    #: Computes the result from arrays; a real ``np.ufunc`` lets kernels pass ``out=``.
    function: ClassVar[Any] = None
    #: What it computes of one element: the name of an instruction of scalar programs, or a formula
    #: of :class:`~symdnn.ops.core.scalar.Scalar`. Kernels and fusion are made of it; None: NumPy.
    formula: ClassVar[Any] = None
    #: Whether operands of the formula, then a method, keep dtypes other than :meth:`work_dtype`.
    mixes_dtypes: ClassVar[bool] = False
    #: Whether a program that applies it wants the result rounded to its dtype.
    rounds: ClassVar[bool] = False
    #: Whether it jumps: of 16-bit operands it then reads the rounded numbers.
    decides: ClassVar[bool] = False
    #: Whether the operands may be exchanged.
    commutative: ClassVar[bool] = False
    #: Whether it is a choice between its second and its third operand.
    chooses: ClassVar[bool] = False
    #: Whether it is the sum of its operands.
    adds: ClassVar[bool] = False
    #: The number of operands.
    arity: ClassVar[int] = 1
    #: Kinds of dtypes of the operands: b(ool), i(nteger), f(loat), c(omplex).
    kinds: ClassVar[str] = "bifc"
    #: The advice of the error about an operand of another kind.
    advice: ClassVar[str] = ""
    #: The index of the first operand whose dtype matters for the result's.
    first: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if vars(cls).keys() & {"function", "reference"} and "formula" not in vars(cls):
            cls.formula = None  # the base's is of another function

    @property
    def scalar_op(self) -> Elemwise:
        """The op itself: Theano's elementwise ops hold one of numbers by this name."""
        return self

    def make_node(self, *inputs: Any, hints: Hints | None = None) -> Apply:
        given = [as_variable(i) for i in inputs]
        variables = settled(given, self.first, self.is_comparison)
        rest = [v.type for v in variables[self.first :]]
        if all([isinstance(t, TensorType) for t in rest]):
            wanted = self.operand_dtype(*[t.dtype for t in rest])
            if wanted is not None:
                cast = operator("cast")
                variables[self.first :] = [cast(v, wanted) for v in variables[self.first :]]
        node = super().make_node(*variables, hints=hints)
        if is_number(given[self.first :]):
            node.outputs[0].number_kind = kind_of_number(node.outputs[0].type.dtype)
        if not self.rounds:
            note_unrounded(node, given)
        return node

    def operand_dtype(self, *dtypes: str) -> str | None:
        """The dtype to which the present flags cast the operands; None if they do not.

        After these casts a node's dtypes follow from its inputs alone, so that they remain valid
        when it is compiled under other flags.
        """
        if self.is_comparison or len(set(dtypes)) == 1:
            return None
        wanted = upcast(*dtypes)
        return None if wanted == promote(*dtypes) else wanted

    def out_dtype(self, *dtypes: str) -> str:
        """The result's dtype from the operands' (NumPy's promotion)."""
        return promote(*dtypes)

    def work_dtype(self, *dtypes: str) -> str:
        """The dtype in which kernels compute, from the operands'; not one of 16 bits."""
        wide = [work_dtype(d) for d in dtypes]
        common = promote(*wide)
        return "int8" if common == "bool" and self.out_dtype(*dtypes) == "int8" else common

    def takes(self, dtype: str) -> bool:
        """Whether an operand may have this dtype."""
        return kind_of(dtype) in self.kinds

    @property
    def wanted(self) -> str:
        """The operands in words."""
        names = " or ".join(_KINDS[k] for k in self.kinds)
        dtypes = "" if self.kinds == "bifc" else f" of {names} dtype"
        return f"1 tensor{dtypes}" if self.arity == 1 else f"{self.arity} tensors{dtypes}"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != self.arity:
            raise TypeMismatch(self, self.wanted, list(inputs))
        for t in inputs:
            if not isinstance(t, TensorType) or not self.takes(t.dtype):
                raise TypeMismatch(self, self.wanted, list(inputs), self.advice)
        if len(inputs) > 1 and len({t.ndim for t in inputs}) != 1:
            raise NdimMismatch(self, f"{self.wanted} of equal ndim", list(inputs))
        shape = broadcast_static(self, inputs)
        dtype = self.out_dtype(*[t.dtype for t in inputs])
        for t in inputs:
            if t.shape == shape and t.dtype == dtype:
                return t  # one object for equal types, which keeps its computed properties
        return tensor_type(dtype, shape)

    def reference(self, *inputs: Array) -> Array:
        dtypes = [dtype_name(a.dtype) for a in inputs]
        out = numpy_dtype(self.out_dtype(*dtypes))
        if any(map(is_narrow_float, dtypes)):
            inputs = tuple(
                a.astype(np.float32) if is_narrow_float(d) else a for a, d in zip(inputs, dtypes)
            )
        return np.asarray(type(self).function(*inputs)).astype(out, copy=False)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [broadcast_dims(self, types, shapes)]

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: tuple(range(self.arity))}

    def slope(self, x: Variable, y: Variable) -> Variable:
        """The derivative of an op of one operand, from the operand and the result."""
        raise NonDifferentiable(f"{self} has no gradient")

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        """Gradients for operands of the output's shape; None for an operand without one."""
        if self.arity != 1:
            raise NonDifferentiable(f"{self} has no gradient")
        return [cotangent * conjugate(self.slope(inputs[0], output))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        if all(not t.type.is_differentiable for t in inputs):
            return [None] * len(inputs)
        grads = self._chosen_vjp(inputs, outputs[0], cotangents[0])
        return [
            None if g is None else unbroadcast(_real_for(g, v), v) for g, v in zip(grads, inputs)
        ]

    def _chosen_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        """:meth:`scalar_vjp`; elements to which a choice gave no gradient have none here either.

        So a slope that is not finite in the branch that was not chosen, as in
        ``switch(x > 0, sqrt(x), 0)``, makes no NaN of their zeros (Theano's
        ``local_mul_switch_sink``).
        """
        found = _chosen_part(cotangent)
        if found is None:
            return self.scalar_vjp(inputs, output, cotangent)
        condition, of_yes, part = found
        switch = operator("switch")

        def only_chosen(g: Variable | None) -> Variable | None:
            if g is None or g is part:
                return None if g is None else cotangent
            zero = like(0, g)
            return switch(condition, g, zero) if of_yes else switch(condition, zero, g)

        return [only_chosen(g) for g in self.scalar_vjp(inputs, output, part)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        # A real elementwise Jacobian is diagonal, so its own transpose; a complex one is not.
        if any(v.type.is_complex for v in (*inputs, *outputs)):
            return None
        (y,) = outputs
        if not y.type.is_differentiable:
            return [None]
        total: Variable | None = None
        for i, t in enumerate(tangents):
            if t is None:
                continue
            term = self.scalar_vjp(inputs, y, t)[i]
            if term is not None:
                total = term if total is None else total + term
        if total is not None and total.type.dtype != y.type.dtype:
            total = operator("cast")(total, y.type.dtype)
        if total is not None and total.type.broadcastable != y.type.broadcastable:
            total = operator("fill")(y, total)
        return [total]

    def short_with(self, inputs: Vars, axis: int) -> Sequence[tuple[Variable, int]]:
        return [(v, axis) for v in inputs]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        wide = [same_for_all(v) if a is None else v for v, a in zip(inputs, axes)]
        return Op.make_node(self, *wide).outputs, [0]  # without casts by the present flags


_KINDS = {"b": "bool", "i": "integer", "f": "float", "c": "complex"}


@cache
def kind_of(dtype: str) -> str:
    """``"b"``, ``"i"``, ``"f"`` or ``"c"``: bool, integer, real or complex."""
    t = TensorType(dtype)
    return "c" if t.is_complex else "f" if t.is_float else "i" if t.is_integer else "b"


def conjugate(v: TensorLike) -> Any:
    """The complex conjugate; ``v`` itself when it is real or a number."""
    if isinstance(v, Variable) and v.type.is_complex:
        return v.conj()
    return v


def like(value: TensorLike, v: Variable) -> Constant:
    """A scalar constant of the dtype of ``v``, which causes no upcast."""
    return constant(value, dtype=v.type.dtype)


def as_computed(inputs: Vars, output: Variable) -> list[Variable]:
    """The operands in the result's dtype, for slopes in the dtype of the function.

    Without it ``log`` of an int8 operand next to a float64 one would be computed in ``floatX``, and
    its square would wrap around.
    """
    return [v.astype(output.type.dtype) for v in inputs]


def _chosen_part(g: Variable) -> tuple[Variable, bool, Variable] | None:
    """(condition, whether the part is for true, part) of ``switch(condition, part, 0)``, or of the
    sum of two such choices by one condition."""
    node = g.owner
    if node is None or not isinstance(node.op, Elemwise):
        return None
    if node.op.chooses:
        condition, yes, no = node.inputs
        part = no if _is_zero(yes) else yes if _is_zero(no) else None
        if part is None or part.type.broadcastable != g.type.broadcastable:
            return None
        return condition, part is yes, part
    if not node.op.adds:
        return None
    parts = [_chosen_part(v) for v in node.inputs]
    if any(p is None or p[:2] != parts[0][:2] for p in parts):  # type: ignore[index]
        return None
    condition, of_yes, _ = parts[0]  # type: ignore[misc]
    return condition, of_yes, node.op(*[p[2] for p in parts if p is not None])


def _is_zero(v: Variable) -> bool:
    if v.owner is not None and v.owner.op.views:
        v = v.owner.inputs[0]  # dimensions were added to a constant
    return isinstance(v, Constant) and v.data.size == 1 and not v.data.any()


def _real_for(g: Variable, v: Variable) -> Variable:
    if g.type.is_complex and v.type.is_differentiable and not v.type.is_complex:
        return g.real
    return g


class FloatElemwise(Elemwise):
    """An elementwise op whose operands and result are floating (or complex): ints are cast."""

    def operand_dtype(self, *dtypes: str) -> str | None:
        wanted = float_of(*dtypes)
        return None if wanted == promote(*dtypes) else wanted

    def out_dtype(self, *dtypes: str) -> str:
        return float_of(*dtypes)

    def work_dtype(self, *dtypes: str) -> str:
        out = self.out_dtype(*dtypes)
        return work_dtype(out)

    def reference(self, *inputs: Array) -> Array:
        dtypes = [dtype_name(a.dtype) for a in inputs]
        work = numpy_dtype(self.work_dtype(*dtypes))
        result = type(self).function(*(a.astype(work, copy=False) for a in inputs))
        return np.asarray(result).astype(numpy_dtype(self.out_dtype(*dtypes)), copy=False)


def apply_elemwise(op: Elemwise, *operands: TensorLike, hints: Hints | None = None) -> Variable:
    """Apply ``op`` to variables, numbers or arrays, with leading dimensions added to one ndim."""
    variables: Any = []
    v: Any
    for v in operands:
        if isinstance(v, Pattern):
            return op(*operands)
        variables.append(v if type(v) in (int, float) else as_variable(v))
    types: list[Any] = [v.type for v in variables if isinstance(v, Variable)]
    if not all([isinstance(t, TensorType) for t in types]):
        raise TypeMismatch(op, op.wanted, [as_variable(v).type for v in operands])
    ndims = {t.ndim for t in types}
    if len(ndims) != 1 or len(types) < len(variables):
        variables = [pad_left(v, max(ndims, default=0)) for v in variables]
    if len(variables) > 1:
        variables = with_short_axes_declared(variables)
        return narrowed(op(*variables, hints=hints), variables[op.first :])
    return op(*variables, hints=hints)


def pad_left(v: Variable | float, ndim: int) -> Variable:
    """A variable or a number with leading dimensions of static size 1 up to ``ndim``."""
    if not isinstance(v, Variable):
        return number_constant(v, ndim)
    missing = ndim - v.type.ndim
    if missing <= 0:
        return v
    if isinstance(v, Constant):
        return v.reshaped((1,) * missing + v.data.shape)
    padded = dimshuffle(v, ("x",) * missing + tuple(range(v.type.ndim)))
    padded.number_kind = v.number_kind
    note_padded(padded, v)
    return padded


def broadcast_static(op: Op, types: Sequence[TensorType]) -> tuple[int | None, ...]:
    """Static shape of the result; raises :class:`ShapeMismatch` if known sizes differ."""
    shapes = [t.shape for t in types]
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    found, axis = _broadcast(*shapes)
    if axis is not None:
        raise ShapeMismatch(
            op,
            "operands that agree or are 1 in each dimension",
            f"{[str(t) for t in types]} (dimension {axis})",
        )
    return found


@lru_cache(maxsize=4096)
def _broadcast(*shapes: tuple[int | None, ...]) -> tuple[tuple[int | None, ...], int | None]:
    """The shape of the result, and a dimension in which known sizes differ."""
    out: list[int | None] = []
    for axis, sizes in enumerate(zip(*shapes)):
        wide = {s for s in sizes if s is not None and s != 1}
        if len(wide) > 1:
            return (), axis
        out.append(wide.pop() if wide else (1 if all(s == 1 for s in sizes) else None))
    return tuple(out), None


def broadcast_dims(op: Op, types: Types, shapes: Shapes) -> Shape:
    """Shape of the result; only dimensions that are statically 1 broadcast."""
    return tuple(
        _broadcast_axis(op, types, shapes, axis) for axis in range(types[0].ndim if types else 0)
    )


def _broadcast_axis(op: Op, types: Types, shapes: Shapes, axis: int) -> Dim:
    wide = [s[axis] for t, s in zip(types, shapes) if t.shape[axis] != 1]
    if not wide:
        return 1
    found = common(wide)
    if found is None:
        advice = names_advice(wide) or "Use operands of equal sizes"
        if 1 in map(known, wide):
            advice = (
                "A dimension of unknown size turned out to be 1, and only a dimension that is "
                f"statically 1 broadcasts: declare it with T.addbroadcast(x, {axis}) or "
                "T.patternbroadcast, or use shared(..., broadcastable=...)"
            )
        raise ShapeMismatch(
            op, f"equal sizes in dimension {axis}", f"shapes {[tuple(s) for s in shapes]}", advice
        )
    return found


def unbroadcast(g: Variable, like: Variable) -> Variable:
    """``g`` summed over the dimensions along which ``like`` was broadcast."""
    pattern, wide = like.type.broadcastable, g.type.broadcastable
    axes = [i for i in range(like.type.ndim) if pattern[i] and not wide[i]]
    return operator("sum")(g, axes, keepdims=True) if axes else g
