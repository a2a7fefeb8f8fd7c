"""Walks over graphs, and copies of them. None recurses, so depth is no limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Any

from symdnn.errors import GraphError, InputError, TypeMismatch
from symdnn.graph.origin import Written
from symdnn.graph.variable import Apply, Constant, Shared, Variable, as_variable
from symdnn.options import as_kind, as_list

__all__ = [
    "ancestors", "clone", "clone_graph", "depth_first", "graph_inputs", "in_written_order",
    "leaves", "may_need", "needed_by", "parameter_name", "toposort", "updates_read",
    "written_order",
]  # fmt: skip

#: Where a way through a graph has so many nodes, and twice as many, it is looked at for a cycle.
_LOOKED_AT_NODES = 1000


def toposort(outputs: Iterable[Variable], blockers: Iterable[Variable] = ()) -> list[Apply]:
    """Nodes that ``outputs`` need, inputs first; the walk stops at ``blockers``.

    Ordered effects (:attr:`Op.ordered`) are in the order in which they were written.
    """
    # A set or a dict is looked up as it is: copying it at each call would make walks quadratic.
    blocked = blockers if isinstance(blockers, Mapping | AbstractSet) else set(blockers)
    done: set[Apply] = set()
    order: list[Apply] = []
    ordered: list[Apply] = []
    # The nodes on the way to the one that is visited, and of each the inputs that are left. The
    # outputs are the inputs of no node.
    way: list[Apply] = []
    looked_at = _LOOKED_AT_NODES
    inputs = iter(tuple(outputs))
    stack = [inputs]
    while stack:
        for v in inputs:
            node = v.owner
            if node is not None and node not in done and not (blocked and v in blocked):
                way.append(node)
                if len(way) == looked_at:
                    _refuse_cycle(way)
                    looked_at *= 2
                inputs = iter(node.inputs)
                stack.append(inputs)
                break
        else:
            stack.pop()
            if stack:
                inputs = stack[-1]
                node = way.pop()
                done.add(node)
                order.append(node)
                if node.op.ordered:
                    ordered.append(node)
    return in_written_order(order, ordered)


def _refuse_cycle(way: Sequence[Apply]) -> None:
    """Raise :class:`GraphError` where a node is on the way to itself: that would never end."""
    at: dict[Apply, int] = {}
    for i, node in enumerate(way):
        if node in at:
            ops = " -> ".join(str(n.op) for n in reversed(way[at[node] : i + 1]))
            raise GraphError(f"the graph has a cycle: {ops}")
        at[node] = i


def _makers(node: Apply) -> list[Apply]:
    return [v.owner for v in node.inputs if v.owner is not None]


def written_order(
    order: Sequence[Apply],
    ordered: Collection[Apply],
    needs: Callable[[Apply], Iterable[Apply]] = _makers,
) -> list[Apply]:
    """``ordered`` nodes in the order in which they were written, as far as their inputs allow it.

    ``order`` is a topological order of all nodes. Inputs have precedence: by ``givens`` a node may
    need one that was written later.
    """
    inside = {n: i for i, n in enumerate(order)}
    users: dict[Apply, list[Apply]] = {}
    missing = dict.fromkeys(order, 0)
    for node in order:
        for maker in {m: None for m in needs(node) if m in inside}:
            users.setdefault(maker, []).append(node)
            missing[node] += 1
    # Nodes without effects come first, so that the next effect is chosen among all that are ready.
    keys = {n: (n.written if n in ordered else (), inside[n]) for n in order}
    ready = [keys[n] for n in order if not missing[n]]
    heapify(ready)
    found: list[Apply] = []
    while ready:
        node = order[heappop(ready)[1]]
        if node in ordered:
            found.append(node)
        for user in users.get(node, ()):
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, keys[user])
    return found


def in_written_order(
    order: list[Apply],
    ordered: Collection[Apply],
    needs: Callable[[Apply], Iterable[Apply]] = _makers,
) -> list[Apply]:
    """``order``, a topological one, with its ``ordered`` nodes as :func:`written_order` has them;
    other nodes are moved only before those that need them."""
    if len(ordered) < 2:
        return order
    ordered = set(ordered)
    chain = written_order(order, ordered, needs)
    if chain == [n for n in order if n in ordered]:
        return order
    before = dict(zip(chain[1:], chain))
    inside, done = set(order), dict[Apply, None]()
    for start in order:
        stack = [start]
        while stack:
            node = stack[-1]
            wanted = [*needs(node), *([before[node]] if node in before else ())]
            missing = [n for n in wanted if n in inside and n not in done]
            if missing:
                stack += missing[::-1]
            else:
                done.setdefault(stack.pop())
    return list(done)


def may_need(node: Apply, values: Iterable[Variable]) -> bool:
    """Whether a rewrite may make ``node`` depend on ``values`` as well.

    Not if they depend on it, nor on an ordered effect that it does not need: their order could be
    reversed.
    """
    own = {v for n in toposort(node.inputs) for v in n.outputs}
    return not any(n is node or n.op.ordered for n in toposort(values, own))


def new_nodes(outputs: Iterable[Variable], known: Container[Apply]) -> list[Apply]:
    """Nodes that ``outputs`` need and that are not ``known``, inputs first; walks stop at those."""
    done: set[Apply] = set()
    order: list[Apply] = []
    stack = [(v.owner, False) for v in outputs]
    while stack:
        node, expanded = stack.pop()
        if node is None or node in done or node in known:
            continue
        if expanded:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        stack += [(i.owner, False) for i in node.inputs if i.owner is not None]
    return order


def ancestors(outputs: Iterable[Variable], blockers: Iterable[Variable] = ()) -> list[Variable]:
    """All variables that ``outputs`` depend on, themselves included, inputs first."""
    outs = list(outputs)
    seen: dict[Variable, None] = {}
    for node in toposort(outs, blockers):
        seen.update(dict.fromkeys(node.inputs))
        seen.update(dict.fromkeys(node.outputs))
    seen.update(dict.fromkeys(outs))
    return list(seen)


def leaves(outputs: Iterable[Variable], blockers: Iterable[Variable] = ()) -> list[Variable]:
    """Variables without an owner that ``outputs`` depend on, and ``blockers`` on the way."""
    blocked = set(blockers)
    return [v for v in ancestors(outputs, blocked) if v.owner is None or v in blocked]


def needed_by(outputs: Iterable[Variable]) -> set[Variable]:
    """Variables that ``outputs`` depend on, also by a static size alone; themselves included."""
    needed: set[Variable] = set()
    pending = list(outputs)
    while pending:
        new = set(ancestors(pending, needed)) - needed
        needed |= new
        pending = [c.read_of for c in new if isinstance(c, Constant) and c.read_of is not None]
    return needed


def updates_read(
    outputs: Iterable[Variable], blockers: Collection[Variable],
    update: Callable[[Shared, Variable], Variable | None],
) -> dict[Shared, Variable]:  # fmt: skip
    """Shared variables that ``outputs``, or these updates, read and their default updates.

    ``update`` gives the update of a variable from its default update, None to leave it alone. The
    walk stops at ``blockers``.
    """
    found: dict[Shared, Variable] = {}
    seen: set[Variable] = set()
    pending = list(outputs)
    while pending:
        read = [v for v in leaves(pending, blockers) if isinstance(v, Shared) and v not in seen]
        seen.update(read)
        pending = []
        for v in read:
            new = None if v.default_update is None else update(v, v.default_update)
            if new is not None:
                found[v] = new
                pending.append(new)
    return found


def depth_first(outputs: Iterable[Variable], blockers: Iterable[Variable] = ()) -> list[Variable]:
    """Variables that ``outputs`` depend on in Theano's order: depth first, the last of ``outputs``
    first, the inputs of a node from left to right. The walk stops at ``blockers``."""
    blocked = set(blockers)
    seen: dict[Variable, None] = {}
    stack = list(outputs)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen[v] = None
        if v.owner is not None and v not in blocked:
            stack.extend(reversed(v.owner.inputs))
    return list(seen)


def graph_inputs(outputs: Iterable[Variable], blockers: Iterable[Variable] = ()) -> list[Variable]:
    """Variables without an owner that ``outputs`` depend on: Theano's ``gof.graph.inputs``.

    The order is Theano's too (:func:`depth_first`), since programs store parameters in it.

    >>> import symdnn.tensor as T
    >>> a, b, c = T.scalars("a", "b", "c")
    >>> graph_inputs([a + (b + c)]), graph_inputs([a, b])
    ([a, b, c], [b, a])
    """
    return [v for v in depth_first(outputs, blockers) if v.owner is None]


def free_inputs(outputs: Iterable[Variable]) -> list[Variable]:
    """The inputs that are neither constants nor shared variables."""
    return [v for v in leaves(outputs) if not isinstance(v, Constant | Shared)]


def clone_graph(
    outputs: Sequence[Variable],
    replace: Mapping[Variable, Variable],
    leaf: Callable[[Variable], Variable] = lambda v: v,
    within: Written = (),
    order: Sequence[Apply] | None = None,
) -> dict[Variable, Variable]:
    """Copy the graph of ``outputs`` with some variables replaced.

    ``replace`` maps variables (inputs or intermediate ones) to their replacements; other leaves are
    mapped by ``leaf``. The result maps each old variable to its new one. Types are inferred anew
    only below a replacement of another type. ``within`` is the order number of the node that the
    copy replaces. ``order`` has the nodes, inputs first, where they are known.
    """
    memo: dict[Variable, Variable] = dict(replace)

    def lookup(v: Variable) -> Variable:
        if v not in memo:
            memo[v] = leaf(v)
        return memo[v]

    for node in toposort(outputs, blockers=replace) if order is None else order:
        inputs = [lookup(v) for v in node.inputs]
        new = copy_node(node, inputs)
        new.written = within + node.written
        for a, b in zip(node.outputs, new.outputs, strict=True):
            memo.setdefault(a, b)
    for v in outputs:
        lookup(v)
    return memo


def clone(
    output: Any,
    replace: Any = None,
    strict: bool = True,
    share_inputs: bool = True,
    copy_inputs: bool | None = None,
) -> Any:
    """``output`` (a variable, a list or a dict of them) with variables replaced (Theano's clone).

    ``replace`` maps variables to expressions; with ``strict`` a replacement must have the type
    of its variable. With ``share_inputs=False`` the copy has new inputs; the copy of a shared
    variable has the same storage. ``copy_inputs`` is the old name of ``share_inputs``.
    """
    share_inputs = share_inputs if copy_inputs is None else copy_inputs
    outputs = [*output.values()] if isinstance(output, Mapping) else output
    several = isinstance(outputs, list | tuple)
    outputs = list(outputs) if several else [outputs]
    for v in outputs:
        as_kind("clone", v, Variable, "a variable, or a list or dict of them")
    pairs = _replacements(replace)
    new = {old: as_variable(v) for old, v in pairs.items()}
    if strict:
        for old, v in new.items():
            if not old.type.accepts(v.type):
                raise TypeMismatch("clone", f"{old.type} for {old}", v.type)
    memo = clone_graph(outputs, new, _same if share_inputs else _copy)
    copies = [memo[v] for v in outputs]
    if isinstance(output, Mapping):
        return dict(zip(output, copies))
    return copies if several else copies[0]


def _replacements(replace: Any) -> dict[Variable, Any]:
    """The pairs of a dict or a list, from a variable to what replaces it."""
    given = list(replace.items()) if isinstance(replace, Mapping) else replace or ()
    wanted = "pairs (variable, its replacement), or a dict of them"
    for pair in as_list("clone: replace", given, wanted):
        as_kind("clone: replace", pair, (list, tuple), wanted)
        if len(pair) != 2 or not isinstance(pair[0], Variable):
            raise InputError(f"clone: replace: wanted {wanted}, got {pair!r:.60}")
    return dict(given)


def _same(v: Variable) -> Variable:
    return v


def _copy(v: Variable) -> Variable:
    return v if isinstance(v, Constant) else v.clone()


def copy_node(node: Apply, inputs: Sequence[Variable]) -> Apply:
    """The same node on other inputs; types are inferred anew only if types or names of sizes of the
    inputs differ."""
    for a, b in zip(node.inputs, inputs):
        if a.type is not b.type and (a.type != b.type or a.type.names != b.type.names):
            return node.clone_with(inputs)
    types = [o.type for o in node.outputs]
    new = Apply(node.op, inputs, types, node.origin, node.hints, node.written)
    for old, out in zip(node.outputs, new.outputs):
        out.name, out._tag = old.name, old._tag
    return new


def substituted(
    outputs: Sequence[Variable], replace: Mapping[Variable, Variable]
) -> list[Variable]:
    """``outputs`` with some variables replaced by others of their types.

    Nodes that need none of those stay what they are; the others are copied.
    """
    memo = dict(replace)
    for node in toposort(outputs, blockers=replace):
        inputs = [memo.get(v, v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            memo.update(zip(node.outputs, copy_node(node, inputs).outputs, strict=True))
    return [memo.get(v, v) for v in outputs]


#: The most views and casts between a parameter and its reader that are followed.
_MAX_VIEWS_AND_CASTS = 16


def parameter_name(v: Variable) -> str:
    """The name of the shared variable that ``v`` is, is a view of or is cast from; empty if there
    is none or it has no name."""
    for _ in range(_MAX_VIEWS_AND_CASTS):
        if isinstance(v, Shared):
            return str(v.name or "")
        if v.owner is None or len(v.owner.inputs) != 1:
            break
        v = v.owner.inputs[0]
    return ""
