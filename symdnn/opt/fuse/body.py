"""The scalar program of a fusion group, with its operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.opt.fuse.groups import Groups, Member, number_in, widened
from symdnn.rewriting.facts import all_ones, node_of

#: The cost, in additions, up to which the computation of a scalar is repeated for each element.
RECOMPUTE_LIMIT_ADDITIONS = 8
#: The most scalars of a group that are computed so.
MAX_RECOMPUTED_SCALARS = 64


class Body:
    """Builds the scalar program of a group, with its inputs and the values of its variables."""

    def __init__(
        self, groups: Groups, group: Sequence[Member], again: Mapping[Variable, ScalarProgram]
    ) -> None:
        self.fgraph, self.members = groups.fgraph, groups.members
        self.own = {m.node for m in group}
        self.ndim = group[0].node.outputs[0].type.ndim
        self.again = again
        self.recomputed = self._cheap_scalars(group)
        self.inputs: dict[Variable, Variable] = {}
        self._find_inputs(group)
        dtypes = [part_dtypes(v.type.dtype) for v in self.inputs]
        self.builder = Builder([part for parts in dtypes for part in parts])
        places = iter(range(len(self.builder.inputs)))
        #: What is known of each variable: a number, or the parts of a complex one.
        self.values: dict[Variable, list[Scalar]] = {
            v: [self.builder.input(next(places)) for _ in parts]
            for v, parts in zip(self.inputs, dtypes, strict=True)
        }
        for member in group:
            self._emit(member.node, member.program)

    # -- scalars that are recomputed for each element ---------------------------------------------

    def _cheap_scalars(self, group: Sequence[Member]) -> dict[Variable, ScalarProgram]:
        """Cheap scalars that only this group reads, with their programs."""
        found: dict[Variable, ScalarProgram] = {}
        pending = [v for m in group for v in m.node.inputs]
        while pending and len(found) < MAX_RECOMPUTED_SCALARS:
            v = scalar_behind(pending.pop())
            if v is None or v in found or v.owner is None or v.owner in self.own:
                continue
            member = self.members.get(v.owner)
            cheap = member is not None and member.program.cost <= RECOMPUTE_LIMIT_ADDITIONS
            if cheap and len(v.owner.outputs) == 1 and self._read_only_here(v, found):
                found[v] = self.members[v.owner].program
                pending += v.owner.inputs
        return found

    def _read_only_here(self, v: Variable, recomputed: Iterable[Variable]) -> bool:
        allowed = self.own | {p.owner for p in recomputed}
        stack = [v]
        while stack:
            for user, _ in self.fgraph.users(stack.pop()):
                if user is None:
                    return False
                if isinstance(user.op, DimShuffle):
                    stack.append(user.outputs[0])
                elif user not in allowed:
                    return False
        return True

    # -- inputs -----------------------------------------------------------------------------------

    def _find_inputs(self, group: Sequence[Member]) -> None:
        for member in group:
            for v in member.node.inputs:
                self._add_input(v)

    def _add_input(self, v: Variable) -> None:
        if v.owner in self.own or number_in(v) is not None or v in self.inputs:
            return
        narrow = widened(v)
        if narrow is not None:
            self._add_input(narrow)
            return
        if v in self.again:
            for w in node_of(v).inputs:
                self._add_input(w)
            return
        behind = scalar_behind(v)
        if behind is not None and behind in self.recomputed:
            for w in node_of(behind).inputs:
                self._add_input(w)
            return
        self.inputs[v] = v

    def operands(self) -> list[Variable]:
        """The inputs with the ndim of the group; inputs of recomputed scalars are padded."""
        return [
            v if v.type.ndim == self.ndim else dimshuffle(dimshuffle(v, ()), ("x",) * self.ndim)
            for v in self.inputs
        ]

    # -- instructions -----------------------------------------------------------------------------

    def _emit(self, node: Apply, program: ScalarProgram) -> None:
        given = [part for v in node.inputs for part in self._value(v)]
        rest = iter(self.builder.inline(program, given))
        for v in node.outputs:
            self.values[v] = [next(rest) for _ in part_dtypes(v.type.dtype)]

    def _value(self, v: Variable) -> list[Scalar]:
        if v in self.values:
            return self.values[v]
        number = number_in(v)
        if number is not None:
            if v.exact is None:  # type: ignore[attr-defined]
                return [self.builder.const(number, v.type.dtype)]
            wide = self.builder.const(v.exact, "float32")  # type: ignore[attr-defined]
            return [wide.cast(v.type.dtype, RESULT)]
        narrow = widened(v)
        if narrow is not None:
            (value,) = self._value(narrow)
            self.values[v] = [self.builder.cast(value, v.type.dtype)]
            return self.values[v]
        if v in self.again:
            self._emit(node_of(v), self.again[v])
            return self.values[v]
        behind: Any = scalar_behind(v)
        if behind not in self.values:
            self._emit(behind.owner, self.recomputed[behind])
        return self.values[behind]


def scalar_behind(v: Variable) -> Variable | None:
    """The variable that ``v``, of static sizes 1, is a dimshuffle of; None for other sizes."""
    if not isinstance(v.type, TensorType) or not all_ones(v):
        return None
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return v
