"""What the rewrites have in common that let a library's op take in the elementwise ops behind it.

A target says which nodes begin a chain and how a chain takes in its reader; how far it goes, and
that it goes there only where an elementwise kernel goes away for it, is the same on all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.opt.fuse.fuse import Groups
from symdnn.rewriting.rewrite import Context

__all__ = ["Chain", "is_channel_bias", "take_in", "with_activation"]


@dataclass(frozen=True)
class Chain:
    """An op with what it has taken in so far; ``value`` is what it stands for."""

    op: Any
    operands: tuple[Variable, ...]
    value: Variable
    z: Variable | None = None
    bias: Variable | None = None

    @property
    def op_dtype(self) -> str:
        """The dtype of the op's operands and result; ``value`` may be wider for a while."""
        return str(self.operands[0].type.dtype)

    def inputs(self) -> list[Variable]:
        """The operands of the op."""
        return [*self.operands, *(v for v in (self.z, self.bias) if v is not None)]


def is_channel_bias(v: Variable, axis: int, out: Variable) -> bool:
    """Whether ``v`` has the dimension ``axis`` of ``out`` alone."""
    ones = v.type.broadcastable
    alone = all(one == (i != axis) for i, one in enumerate(ones))
    return bool(alone and len(ones) == out.type.ndim and v.type.dtype == out.type.dtype)


def with_activation(chain: Chain, user: Apply, activations: Any) -> Chain | None:
    """The chain with an activation taken in; None where ``user`` is none of those offered."""
    for word, op in activations.items():
        if user.op == op:
            return replace(chain, op=replace(chain.op, activation=word), value=user.outputs[0])
    return None


def take_in(
    context: Context,
    name: str,
    start: Callable[[Apply], Chain | None],
    taken: Callable[[Chain, Apply], Chain | None],
) -> None:
    """Replace all chains of the graph, under the rewrite's ``name``.

    ``start(node)`` begins a chain, ``taken(chain, user)`` is it with its one reader taken in; None
    where that can't be.
    """
    groups = Groups(context)
    for node in context.fgraph.toposort():
        # Read when its turn comes: what it reads may have been replaced.
        begun = start(node) if node in context.fgraph.nodes else None
        chain = None if begun is None else _best(begun, groups, taken)
        if chain is not None:
            _replace(context, name, node, chain)


def _best(
    start: Chain, groups: Groups, taken: Callable[[Chain, Apply], Chain | None]
) -> Chain | None:
    """All that it can take in such that nothing is left of the kernel that did it."""
    chain, best = start, None
    while groups.context.only_user(chain.value):
        (user,) = groups.fgraph.user_nodes(chain.value)
        longer = taken(chain, user) if user in groups.members else None
        if longer is None:
            break
        chain, group = longer, groups.group[user]
        readers = groups.fgraph.user_nodes(chain.value)
        whole = chain.value.type.dtype == start.value.type.dtype
        if whole and not any(groups.group.get(r) is group for r in readers):
            best = chain
    return best


def _replace(context: Context, name: str, node: Apply, chain: Chain) -> None:
    last = chain.value.owner
    assert last is not None, "a chain ends with what it took in"
    with inherit(last.origin, node.hints):
        context.replace([(chain.value, chain.op(*chain.inputs()))], name)
