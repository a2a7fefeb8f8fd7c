"""Lazy choices by one condition become one choice, where they share work of a branch.

A gradient has a choice for each variable. Their branches share the backward pass, which is lazy
only if one choice needs it. What a branch alone needs reads the same branch of other choices by
its condition, so that it needs no choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.control import IfElse
from symdnn.opt.fuse.branches import decided_by, decided_for
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("lower", ("fast_compile", "ifelse", "cond_merge"), "join_choices")
def join_choices(context: Context) -> None:
    """All choices by a condition that others read become one; none where one reads another."""
    order = context.fgraph.toposort()
    counts = Counter(n.inputs[0] for n in order if isinstance(n.op, IfElse))
    if any(node.op.ordered for node in order):
        return
    for condition, count in counts.items():
        if count > 1:
            _join(context, condition)


def _join(context: Context, condition: Variable) -> None:
    choices = _Choices(context, condition)
    if not choices.gain:
        return
    sides = [choices.branches(truth) for truth in (True, False)]
    if any(choices.reads_a_choice(v) for v in (*sides[0], *sides[1], condition)):
        return
    first = choices.read[0]
    with inherit(first.origin, first.hints, first.written):
        joined = IfElse(len(sides[0])).make_node(condition, *sides[0], *sides[1])
    old = [v for node in choices.read for v in node.outputs]
    context.replace(list(zip(old, joined.outputs, strict=True)), "join_choices")


class _Choices:
    """The choices by one condition, and which of them others read than their own branches."""

    def __init__(self, context: Context, condition: Variable) -> None:
        self._fgraph, self._condition = context.fgraph, condition
        self._order = context.fgraph.toposort()
        self.all = [n for n in self._order if _chooses(n, condition)]
        self._needed = decided_by(context.fgraph, self._order)
        self.read = [n for n in self.all if self._has_reader(n)]

    @property
    def gain(self) -> bool:
        """Whether branches share work or have such choices, and all have the same surroundings."""
        around = {self._needed[n] for n in self.read}
        return len(around) == 1 and (len(self.read) < len(self.all) or self._share())

    def branches(self, truth: bool) -> list[Variable]:
        """What the outputs of the choices that others read are, by the condition's value.

        What only this branch needs reads branches in the places of other choices.
        """
        given: dict[Variable, Variable] = {}
        for node in self._order:
            if _chooses(node, self._condition):
                chosen = [given.get(v, v) for v in _branch(node, truth)]
                pairs = zip(node.outputs, chosen, strict=True)
                given.update((v, own) for v, own in pairs if own.type == v.type)
            elif (self._condition, truth) in self._needed[node]:
                inputs = [given.get(v, v) for v in node.inputs]
                if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                    with inherit(node.origin, node.hints, node.written):
                        new = node.clone_with(inputs)
                    given.update(zip(node.outputs, new.outputs, strict=True))
        return [given.get(v, v) for node in self.read for v in _branch(node, truth)]

    def reads_a_choice(self, v: Variable) -> bool:
        """Whether a value needs one of the choices."""
        waiting, seen = [v], set[Apply]()
        while waiting:
            node = waiting.pop().owner
            if node is None or node in seen:
                continue
            if _chooses(node, self._condition):
                return True
            seen.add(node)
            waiting.extend(node.inputs)
        return False

    def _has_reader(self, node: Apply) -> bool:
        """Whether anything reads a choice that no branch of the condition alone needs."""
        uses = [use for v in node.outputs for use in self._fgraph.users(v)]
        found = (decided_for(use, self._needed) for use in uses)
        return any(all(c is not self._condition for c, _ in decided) for decided in found)

    def _share(self) -> bool:
        """Whether two of the choices need a node that only branches of the condition need."""
        found: set[Apply] = set()
        for node in self.read:
            own = set(self._lazy(node))
            if not found.isdisjoint(own):
                return True
            found |= own
        return False

    def _lazy(self, choice: Apply) -> Iterator[Apply]:
        """The nodes of a choice's branches that only branches of the condition need."""
        waiting, seen = list(choice.inputs[1:]), set[Apply]()
        while waiting:
            node = waiting.pop().owner
            if node is None or node in seen:
                continue
            seen.add(node)
            if any(c is self._condition for c, _ in self._needed[node]):
                yield node
                waiting.extend(node.inputs)


def _chooses(node: Apply, condition: Variable) -> bool:
    return isinstance(node.op, IfElse) and node.inputs[0] is condition


def _branch(choice: Apply, truth: bool) -> Sequence[Variable]:
    count = len(choice.outputs)
    return choice.inputs[1 : 1 + count] if truth else choice.inputs[1 + count :]


RULES = (join_choices,)
