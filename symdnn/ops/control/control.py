"""Lazy choice between expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from symdnn.errors import TypeMismatch
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.core.lanes import lanes_of, same_for_all, stacked
from symdnn.ops.core.python_numbers import settled


@dataclass(frozen=True)
class IfElse(MultiOp):
    """``count`` values of one branch or of the other; only the branch taken is computed.

    Inputs: a scalar condition, then the values of the true branch, then those of the false one.
    The reference reads both branches; only the schedule makes it lazy.
    """

    folds: ClassVar[bool] = False

    count: int

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        condition, branches = inputs[0], inputs[1:]
        if not isinstance(condition, TensorType) or condition.ndim != 0:
            raise TypeMismatch(self, "a scalar condition", condition)
        yes, no = branches[: self.count], branches[self.count :]
        return tuple(self._common(a, b) for a, b in zip(yes, no, strict=True))

    def _common(self, a: TensorType, b: TensorType) -> TensorType:
        if a.dtype != b.dtype or a.ndim != b.ndim or a.broadcastable != b.broadcastable:
            raise TypeMismatch(
                self,
                "branches of equal dtype, ndim and broadcastable dimensions",
                [a, b],
                "Cast one of them, or align them with patternbroadcast",
            )
        return a.with_shape(x if x == y else None for x, y in zip(a.shape, b.shape))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        yes, no = inputs[1 : 1 + self.count], inputs[1 + self.count :]
        return tuple(yes if inputs[0] else no)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        yes, no = shapes[1 : 1 + self.count], shapes[1 + self.count :]
        same = all(a is b or a == b for s, t in zip(yes, no) for a, b in zip(s, t))
        return list(yes) if same else None

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        condition, yes, no = inputs[0], inputs[1 : 1 + self.count], inputs[1 + self.count :]
        used = [i for i, c in enumerate(cotangents) if c is not None]
        given = [cotangents[i] for i in used]
        of_yes = IfElse(len(used))(condition, *given, *_zeros([yes[i] for i in used], given))
        of_no = IfElse(len(used))(condition, *_zeros([no[i] for i in used], given), *given)
        grads: list[Variable | None] = [None] * len(inputs)
        for i, a, b in zip(used, of_yes, of_no, strict=True):
            grads[1 + i], grads[1 + self.count + i] = a, b
        return grads

    @property
    def branches(self) -> Sequence[Sequence[int]]:
        return range(1, 1 + self.count), range(1 + self.count, 1 + 2 * self.count)

    def where_taken(self, inputs: Vars, branch: int, gradient: Variable) -> Variable:
        both = [gradient, operator("zeros_like")(gradient)]
        return IfElse(1).make_node(inputs[0], *(both if branch == 0 else both[::-1])).outputs[0]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        both = zip(tangents[1 : 1 + self.count], tangents[1 + self.count :], strict=True)
        used = [i for i, pair in enumerate(both) if any(t is not None for t in pair)]
        found: list[Variable | None] = [None] * self.count
        if used:
            places = [*(1 + i for i in used), *(1 + self.count + i for i in used)]
            given = [
                operator("zeros_like")(inputs[k]) if tangents[k] is None else tangents[k]
                for k in places
            ]
            for i, t in zip(used, IfElse(len(used))(inputs[0], *given), strict=True):
                found[i] = t
        return found

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        condition = inputs[0]
        yes, no = inputs[1 : 1 + self.count], inputs[1 + self.count :]
        own = list(zip(axes[1 : 1 + self.count], axes[1 + self.count :], strict=True))
        if axes[0] is not None:
            holds = operator("neq")(condition, constant(0, dtype=condition.type.dtype))
            both = [
                [same_for_all(v) if pair[k] is None else v for v, pair in zip(branch, own)]
                for k, branch in enumerate((yes, no))
            ]
            chosen = [_chosen(holds, a, b) for a, b in zip(*both, strict=True)]
            return chosen, [0] * self.count
        lanes = lanes_of(inputs, axes)
        wide = [
            [v if pair == (None, None) else stacked(v, pair[k], lanes) for v, pair in zip(vs, own)]
            for k, vs in enumerate((yes, no))
        ]
        found = [None if pair == (None, None) else 0 for pair in own]
        return self.make_node(condition, *wide[0], *wide[1]).outputs, found


def _chosen(holds: Variable, a: Variable, b: Variable) -> Variable:
    """The branch taken in each lane; both are computed."""
    wide = holds.dimshuffle(0, *["x"] * (a.type.ndim - 1))
    return operator("switch")(wide, a, b)


def _zeros(values: Vars, cotangents: Vars) -> list[Variable]:
    """Zeros of the shapes of ``values``, for the branch that is not taken."""
    return [
        operator("zeros_like")(c if v.type.is_static and v.type == c.type else v, c.type.dtype)
        for v, c in zip(values, cotangents, strict=True)
    ]


@advises()
def ifelse(
    condition: TensorLike, then_branch: Any, else_branch: Any, name: str | None = None
) -> Any:
    """``then_branch`` if ``condition`` (a scalar) is not zero, else ``else_branch``; lazily.

    A branch is a variable or a sequence of them; both have the same structure and types.
    """
    single = not isinstance(then_branch, list | tuple)
    yes = [as_variable(v) for v in ([then_branch] if single else then_branch)]
    no = [as_variable(v) for v in ([else_branch] if single else else_branch)]
    if len(yes) != len(no):
        raise TypeMismatch("ifelse", f"as many values in both branches ({len(yes)})", len(no))
    pairs = [_aligned(*settled([a, b])) for a, b in zip(yes, no)]
    node_inputs = [*(a for a, _ in pairs), *(b for _, b in pairs)]
    out = IfElse(len(yes))(as_variable(condition), *node_inputs)
    if name is not None:
        for i, v in enumerate(out):
            v.name = name if single else f"{name}[{i}]"
    return out[0] if single else list(out)


def _aligned(a: Variable, b: Variable) -> tuple[Variable, Variable]:
    if a.type.dtype != b.type.dtype:
        common = operator("add")(a.zeros_like().sum(), b.zeros_like().sum()).type.dtype
        a, b = a.astype(common), b.astype(common)
    return a, b


OPERATORS = {"ifelse": ifelse}
