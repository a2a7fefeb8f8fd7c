"""Facts about variables for rewrites: which sizes agree, which values are constant, which signs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.pattern import Match, is_constant
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, ShapeI
from symdnn.ops.elementwise.arithmetic import Add, Mul, Sub
from symdnn.ops.elemwise import Elemwise
from symdnn.rewriting.shapes import ShapeResolver

__all__ = [
    "ShapeFacts", "all_ones", "discrete", "floating", "is_constant", "is_nonnegative",
    "is_old_value", "is_symbolic", "is_zero", "made_by", "node_of", "number", "one_dtype",
    "real_float", "signed", "value_inputs",
]  # fmt: skip

Key = tuple[str, int]  # equal for sizes that are known to be equal

_ONE: Key = ("is", 1)


def _form_of(key: Key) -> Counter[Key]:
    return Counter({_ONE: key[1]} if key[0] == "is" else {key: 1})


class ShapeFacts:
    """Shapes of all variables, as ints and expressions over the leaves, and which are equal.

    Rewriting never changes the value of a variable, so facts about it stay true.
    """

    def __init__(self) -> None:
        self._resolver = ShapeResolver()
        self._keys: dict[Variable, Key] = {}
        self._table: dict[Any, Key] = {}
        #: The terms of sizes that are sums: how often each, and the number under ``_ONE``.
        self._forms: dict[Key, Counter[Key]] = {}

    def dims(self, v: Variable) -> tuple[Any, ...]:
        """The dimensions of ``v``: ints, or integer scalars over the graph's inputs."""
        return self._resolver.shape(v)

    def key(self, size: Any) -> Key:
        """A key that is equal only for sizes known to be equal (sizes of other keys may be)."""
        if not isinstance(size, Variable):
            return ("is", int(size))
        stack = [size]
        while stack:
            v = stack[-1]
            missing = [i for i in self._parts(v) if i not in self._keys]
            if v not in self._keys and missing:
                stack += missing
                continue
            stack.pop()
            if v not in self._keys:
                self._keys[v] = self._make_key(v)
        return self._keys[size]

    def same(self, a: Any, b: Any) -> bool:
        """Whether two sizes are known to be equal."""
        return a is b or self.key(a) == self.key(b)

    def same_shape(self, v: Variable, w: Variable) -> bool:
        """Whether two variables are known to have equal shapes."""
        if v.type.ndim != w.type.ndim:
            return False
        return all(self.same(a, b) for a, b in zip(self.dims(v), self.dims(w)))

    def covers(self, kept: Variable, lost: Variable) -> bool:
        """Whether dropping the operand ``lost`` beside ``kept`` hides no mismatch of shapes.

        A static size of ``lost`` is part of the result's type, which a rewrite keeps. An unknown
        size must be known to equal that of ``kept``.
        """
        lead = kept.type.ndim - lost.type.ndim
        if lead < 0:
            return False
        wide, narrow = self.dims(kept)[lead:], self.dims(lost)
        return all(
            static is not None or self.same(a, b)
            for static, a, b in zip(lost.type.shape, wide, narrow)
        )

    def no_clash(self, operands: Sequence[Variable]) -> bool:
        """Whether unknown sizes of operands of one ndim are known to be equal on every axis."""
        for axis in range(operands[0].type.ndim):
            open_sizes = [self.dims(v)[axis] for v in operands if v.type.shape[axis] is None]
            if not all(self.same(open_sizes[0], d) for d in open_sizes[1:]):
                return False
        return True

    def product_key(self, sizes: Iterable[Any]) -> tuple[int, tuple[Key, ...]]:
        """A key of the product of sizes: its known factor, and its unknown factors, sorted."""
        count, factors = 1, []
        pending = list(sizes)
        while pending:
            size = pending.pop()
            key = self.key(size)
            if key[0] == "is":
                count *= key[1]
            elif isinstance(size, Variable) and _is_product(size):
                pending += node_of(size).inputs
            elif (through := self._size_behind(size)) is not None:
                pending.append(through)
            else:
                factors.append(key)
        return count, tuple(sorted(factors))

    def _size_behind(self, v: Variable) -> Any:
        """The size that a ``ShapeI`` node computes, in terms of leaves; None if it is a leaf's."""
        node = v.owner
        if node is None or not isinstance(node.op, ShapeI):
            return None
        found = self.dims(node.inputs[0])[node.op.axis]
        own = isinstance(found, Variable) and _is_size_of(found, node)
        return None if own else found

    def _parts(self, v: Variable) -> Sequence[Variable]:
        if v.owner is None or isinstance(v, Constant):
            return ()
        if isinstance(v.owner.op, ShapeI):
            behind = self._size_behind(v)
            return (behind,) if isinstance(behind, Variable) else ()
        # An integer that is computed from data has a token of its own.
        return v.owner.inputs if all(i.type.is_integer_scalar for i in v.owner.inputs) else ()

    def _make_key(self, v: Variable) -> Key:
        if isinstance(v, Constant):
            return ("is", int(v.data)) if v.data.ndim == 0 else self._token(v)
        node = v.owner
        if node is None:
            return self._token(v)
        if isinstance(node.op, ShapeI):
            behind = self._size_behind(v)
            if behind is None:
                return self._token((node.op.axis, node.inputs[0]))
            return self._keys[behind] if isinstance(behind, Variable) else ("is", int(behind))
        if (
            not node.inputs
            or not all(i.type.is_integer_scalar for i in node.inputs)
            or node.op.unmergeable
        ):
            return self._token(v)
        inputs = [self._keys[i] for i in node.inputs]
        if isinstance(node.op, Add | Sub | Mul) and all(
            u.type.dtype == "int64" for u in (v, *node.inputs)
        ):
            return self._of_sum(node.op, *inputs)
        if getattr(node.op, "commutative", False):
            inputs.sort()
        return self._token((node.op, v.index, tuple(inputs)))

    def _of_sum(self, op: Add | Sub | Mul, a: Key, b: Key) -> Key:
        """The key of a sum, difference or product: one for all ways to write a linear form."""
        if isinstance(op, Mul):
            (a, b) = (a, b) if b[0] == "is" else (b, a)
            if b[0] != "is":
                return self._token((op, *sorted((a, b))))
            form = Counter({k: n * b[1] for k, n in self._forms.get(a, _form_of(a)).items()})
        else:
            form = Counter(self._forms.get(a, _form_of(a)))
            sign = 1 if isinstance(op, Add) else -1
            for key, n in self._forms.get(b, _form_of(b)).items():
                form[key] += sign * n
        form = Counter({k: n for k, n in form.items() if n})
        if set(form) <= {_ONE}:
            return ("is", form[_ONE])
        if len(form) == 1 and 1 in form.values():
            return next(iter(form))
        found = self._token(("sum", frozenset(form.items())))
        self._forms[found] = form
        return found

    def _token(self, what: Any) -> Key:
        return self._table.setdefault(what, ("token", len(self._table)))


def _is_size_of(v: Variable, node: Apply) -> bool:
    owner = v.owner
    return (
        owner is not None
        and isinstance(owner.op, ShapeI)
        and owner.op == node.op
        and owner.inputs[0] is node.inputs[0]
    )


def _is_product(v: Variable) -> bool:
    return v.owner is not None and isinstance(v.owner.op, Mul) and v.type.dtype == "int64"


# -- variables ------------------------------------------------------------------------------------


def made_by(v: Variable, *ops: type) -> bool:
    """Whether ``v`` is the result of one of these ops."""
    return v.owner is not None and isinstance(node_of(v).op, ops)


def node_of(v: Variable) -> Any:
    """The node that made ``v``, as Any: the fields of its op depend on the type of the op."""
    return v.owner


def value_inputs(node: Apply) -> Sequence[Variable]:
    """The inputs of which the node reads more than the shape."""
    if isinstance(node.op, ShapeI):
        return ()
    by_shape = node.op.shape_inputs
    return [v for i, v in enumerate(node.inputs) if i not in by_shape] if by_shape else node.inputs


def is_symbolic(v: Variable) -> bool:
    """Whether ``v`` is not a constant."""
    return not isinstance(v, Constant)


def number(v: Variable) -> Any:
    """The number with which a constant is filled, as a NumPy scalar; None if there is none.

    For a constant that was rounded to 16 bits it is the number before rounding: 0.999 is not 1.
    """
    if not isinstance(v, Constant) or v.data.size == 0:
        return None
    if v.exact is not None:
        return np.float64(v.exact)
    first = v.data.flat[0]
    return first if v.data.size == 1 or bool(np.all(v.data == first)) else None


def is_zero(v: Variable) -> bool:
    """Whether ``v`` is known to be 0 everywhere."""
    while made_by(v, Alloc, DimShuffle, Reshape):
        v = node_of(v).inputs[0]
    n = number(v)
    return n is not None and bool(n == 0)


def real_float(v: Variable) -> bool:
    """Whether ``v`` is a real floating-point tensor."""
    return isinstance(v.type, TensorType) and v.type.is_float


def all_ones(v: Variable) -> bool:
    """Whether every dimension is statically 1."""
    return all(d == 1 for d in v.type.shape)


def only_axis(v: Variable) -> int | None:
    """The only dimension that is not statically 1; None if all are, or several are not."""
    axes = [i for i, d in enumerate(v.type.shape) if d != 1]
    return axes[0] if len(axes) == 1 else None


def broadcast_axis(p: Variable, x: Variable, axes: Collection[int]) -> int | None:
    """An axis along which a parameter of a normalisation of ``x`` over ``axes`` broadcasts though
    the statistics do not; None if there is none."""
    for i, (d, n) in enumerate(zip(p.type.shape, x.type.shape, strict=True)):
        if i not in axes and d == 1 and n != 1:
            return i
    return None


def is_old_value(v: Variable) -> bool:
    """Whether ``v`` is a shared variable, or elementwise computed from one and numbers."""
    while v.owner is not None and isinstance(v.owner.op, Elemwise):
        operands = [w for w in v.owner.inputs if number(w) is None]
        if len(operands) != 1:
            return False
        (v,) = operands
    return isinstance(v, Shared)


def is_nonnegative(v: Variable) -> bool:
    """Whether no element of the real ``v`` can be negative; NaN is possible."""
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    if isinstance(v, Constant):
        return not v.type.is_complex and bool(np.all(v.data >= 0))
    if v.owner is None or not v.type.is_float:
        return False
    return bool(v.owner.op.nonnegative)


# -- conditions of rewrites -----------------------------------------------------------------------


def one_dtype(m: Match) -> bool:
    """All matched variables and the result have one dtype."""
    dtype = m.node.outputs[0].type.dtype
    return all(v.type.dtype == dtype for v in m.variables.values())


def discrete(m: Match) -> bool:
    """Whether the result is bool or integer: exact, without NaN."""
    return bool(m.node.outputs[0].type.is_discrete)


def floating(m: Match) -> bool:
    """The result and all matched variables have one real float dtype."""
    return one_dtype(m) and bool(m.node.outputs[0].type.is_float)


def signed(m: Match) -> bool:
    """All matched variables and the result have one dtype, which has negative numbers."""
    dtype = m.node.outputs[0].type.dtype
    return one_dtype(m) and dtype != "bool" and not dtype.startswith("uint")
