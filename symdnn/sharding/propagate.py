"""Which dimension of each value is shared out follows from that of the parameters.

The program, with its gradients and updates, is written with whole values. For each node, a rule of
its op (:mod:`symdnn.sharding.rules`) says what a rank computes: a value is whole, a part along a
dimension, or one term of a sum over the ranks. Without a rule, operands are gathered. So a GEMM
with column-sharded weights and the next one with row-sharded weights need one ``all_reduce``, of
the second one's terms. (Xu et al. 2021, "GSPMD"; Shoeybi et al. 2019, "Megatron-LM".)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.autodiff import gradients_taken
from symdnn.graph.operators import operator
from symdnn.graph.traverse import copy_node, leaves, toposort
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.collective.functions import all_reduce
from symdnn.ops.core.shape import Alloc, ShapeI
from symdnn.ops.elemwise import Elemwise
from symdnn.sharding.axis import AxisLayout, Split, joined, sliced
from symdnn.sharding.storage import InParts, layout_of
from symdnn.world import process
from symdnn.world.group import Group

Pairs = list[tuple[Shared, Variable]]
#: The state of a value that is a sum over the ranks, each of which has one term.
TERM = "term"


@dataclass(frozen=True)
class Local:
    """How a rank has a value: whole (None), a part, or a term."""

    value: Variable
    how: Split | str | None = None

    @property
    def axis(self) -> int | None:
        """The dimension that is shared out."""
        return self.how.axis if isinstance(self.how, Split) else None


#: The outputs of a node from its operands; None: it needs whole ones.
Rule = Callable[["Ranks", Apply, Sequence[Local]], Sequence[Local] | None]


def with_parts(
    outputs: Sequence[Variable], pairs: Pairs, rules: Mapping[type[Any], Rule]
) -> tuple[list[Variable], Pairs]:
    """``outputs`` and updates of a program, on a rank's parts in place of whole variables."""
    results = list(outputs)
    if not InParts.made[0]:
        return results, pairs
    for group in _groups([*leaves([*results, *(n for _, n in pairs)]), *(o for o, _ in pairs)]):
        ranks = Ranks(group, [*results, *(new for _, new in pairs)], rules)
        results = [ranks.whole(v) for v in results]
        pairs = [ranks.update(old, new) for old, new in pairs]
    return results, pairs


def _groups(variables: Iterable[Variable]) -> list[Group]:
    found = [layout_of(v) for v in variables]
    return list(dict.fromkeys(x.group for x in found if isinstance(x, AxisLayout)))


class Ranks:
    """The values of a program on a rank of ``group``."""

    def __init__(
        self, group: Group, outputs: Sequence[Variable], rules: Mapping[type[Any], Rule]
    ) -> None:
        self.group, self.rules = group, rules
        self.index = group.index(process.current().place.rank, "tensor parallel")
        self.found: dict[Variable, Local] = {}
        self._wholes: dict[Variable, Variable] = {}
        self._parts: dict[tuple[Variable, Split], Variable] = {}
        self.order = toposort(outputs)
        self.layouts = [x for v in leaves(outputs) if (x := self._layout(v)) is not None]
        self.wanted = self._wanted()
        for node in self.order:
            self._pass(node)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.group.size

    def _layout(self, v: Variable) -> AxisLayout | None:
        layout = layout_of(v)
        return layout if isinstance(layout, AxisLayout) and layout.group == self.group else None

    def _wanted(self) -> dict[Variable, Split]:
        """The wanted form of gradients of sharded variables, and the sums that they are."""
        taken = gradients_taken()
        found: dict[Variable, Split] = {}
        for node in reversed(self.order):
            for g in node.outputs:
                layout = self._layout(taken[g]) if g in taken else None
                if layout is not None:
                    found[g] = layout.split
                if g in found and isinstance(node.op, Elemwise):
                    same = [v for v in node.inputs if v.type.shape == g.type.shape]
                    found.update(dict.fromkeys(same, found[g]))
        return found

    # -- values ------------------------------------------------------------------------------

    def local(self, v: Variable) -> Local:
        """The rank's part of a value."""
        if v not in self.found:
            layout = self._layout(v)
            self.found[v] = Local(v) if layout is None else Local(layout.own, layout.split)
        return self.found[v]

    def whole(self, v: Variable) -> Variable:
        """The whole of a value."""
        mine = self.local(v)
        if mine.how is None:
            return mine.value
        if v not in self._wholes:
            if isinstance(mine.how, Split):
                size = v.type.shape[mine.how.axis]
                self._wholes[v] = joined(mine.value, mine.how, self.group, size)
            else:
                self._wholes[v] = all_reduce(mine.value, "sum", self.group)
        return self._wholes[v]

    def can_split(self, v: Variable, split: Split) -> bool:
        """Whether a value can be shared out so: the size must be known, and divided."""
        size = v.type.shape[split.axis]
        sections = split.sections or ((size,) if size is not None else ())
        return bool(sections) and sum(sections) == size and not any(s % self.size for s in sections)

    def part(self, v: Variable, split: Split) -> Variable:
        """The part of a value, of which :meth:`can_split` is true."""
        mine = self.local(v)
        if mine.how == split:
            return mine.value
        if (v, split) not in self._parts:
            self._parts[v, split] = self._filled(v, split) or sliced(
                self.whole(v), split, self.size, self.index
            )
        return self._parts[v, split]

    def _filled(self, v: Variable, split: Split) -> Variable | None:
        """The part of an array of equal elements, made as such."""
        node = v.owner
        if node is None or not isinstance(node.op, Alloc) or node.inputs[0].type.ndim:
            return None
        dims: list[Any] = [self.whole(d) for d in node.inputs[1:]]
        dims[split.axis] = (v.type.shape[split.axis] or 0) // self.size
        return operator("alloc")(self.whole(node.inputs[0]), *dims)

    def update(self, old: Shared, new: Variable) -> tuple[Shared, Variable]:
        """An update of the rank's part."""
        layout = self._layout(old)
        if layout is None:
            return old, self.whole(new)
        value = self.part(new, layout.split)
        if value.type.shape != layout.own.type.shape:
            value = operator("specify_type")(value, layout.own.type)
        return layout.own, value

    # -- nodes -------------------------------------------------------------------------------

    def _pass(self, node: Apply) -> None:
        given = [self.local(v) for v in node.inputs]
        wanted = any(v in self.wanted for v in node.outputs)
        found: Sequence[Local] | None = None
        if wanted or any(x.how is not None for x in given):
            rule = next((self.rules[t] for t in type(node.op).__mro__ if t in self.rules), None)
            pure = not node.op.unmergeable or getattr(node.op, "group", None) is not None
            found = rule(self, node, given) if rule is not None and pure else None
        if found is None:
            found = [Local(v) for v in self.same(node, [self.whole(v) for v in node.inputs])]
        self.found.update(zip(node.outputs, found, strict=True))

    def same(self, node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
        """The outputs of the op of ``node`` of other operands."""
        if all(a is b for a, b in zip(inputs, node.inputs)):
            return node.outputs
        return copy_node(node, inputs).outputs

    def size_of(self, node: Apply) -> Local:
        """The whole size of a dimension, without the value itself."""
        axis, mine = node.op.axis, self.local(node.inputs[0])  # type: ignore[attr-defined]
        size = ShapeI(axis)(mine.value)
        return Local(size * self.size if axis == mine.axis else size)
