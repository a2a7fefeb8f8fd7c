"""A function's graph: a private copy of the user's expression that rewrites may change.

Equal nodes (same op, inputs and hints) are one node at all times. So common subexpressions are
merged by the graph itself, not by a rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from symdnn.errors import MissingInputError, RewriteError
from symdnn.graph.operators import operator
from symdnn.graph.origin import NO_HINTS, here
from symdnn.graph.traverse import clone_graph, free_inputs, new_nodes, toposort
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Constant, Shared, Variable

__all__ = ["FunctionGraph"]

Client = tuple[Apply | None, int]  # (node, index of its input), or (None, index of the output)


class FunctionGraph:
    """Inputs, outputs, and for each variable the nodes that read it.

    ``inputs`` are the function's arguments in order; shared variables and constants are leaves of
    their own. ``outputs`` may be replaced by rewrites, ``inputs`` never.
    """

    def _repr_html_(self) -> str:
        """The graph in a notebook: a drawing, or a tree for a large one."""
        return str(operator("repr_html")(self))

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        *,
        replace: Mapping[Variable, Variable] | None = None,
        merge: bool = True,
    ) -> None:
        """Copy the graph of ``outputs``; ``replace`` maps variables to their replacements."""
        own = {v: v.clone() for v in inputs}
        memo = clone_graph(outputs, {**(replace or {}), **own})
        self.merge = merge
        self.inputs = [own[v] for v in inputs]
        self.outputs = [memo[v] for v in outputs]
        self.clients: dict[Variable, dict[Client, None]] = {}
        self.nodes: dict[Apply, None] = {}
        self.on_new_node: list[Callable[[Apply], None]] = []
        #: Called with each node that stays although one of its outputs lost a reader.
        self.on_fewer_readers: list[Callable[[Apply], None]] = []
        #: Outputs that are new values of shared variables: index -> the variable.
        self.updates: dict[int, Shared] = {}
        #: Indices of outputs that the caller takes in the device's memory, without a copy.
        self.lent: frozenset[int] = frozenset()
        #: The variable of the user's graph -> its copy here when the graph was made.
        self.original: dict[Variable, Variable] = {}
        #: The result of :meth:`toposort`, until the graph changes.
        self._order: list[Apply] | None = None
        #: Whether a replacement has changed it since it was made.
        self.changed = False
        #: Rewrites that apply to no node, as long as nothing changes it.
        self.in_vain: frozenset[Any] = frozenset()
        self._known: dict[Any, Apply] = {}
        self._constants: dict[Any, Constant] = {}
        if replace:  # expressions that were not copied
            order, free = toposort(self.outputs), free_inputs(self.outputs)
        else:
            order = list(dict.fromkeys([v.owner for v in memo.values() if v.owner is not None]))
            free = [v for v in memo.values() if v.owner is None]
        self._check_inputs(free)
        merged: dict[Variable, Variable] = {}
        for node in order:
            self._adopt(node, merged)
        for i, v in enumerate(self.outputs):
            self.outputs[i] = self._settled(v, merged)
            self._add_client(self.outputs[i], (None, i))
        self.original = {v: merged.get(w, w) for v, w in memo.items()}
        self._prune([o for n in list(self.nodes) for o in n.outputs])

    def _check_inputs(self, leaves: Iterable[Variable]) -> None:
        allowed = set(self.inputs)
        for v in leaves:
            if v not in allowed and not isinstance(v, Constant | Shared):
                advice = "List it among the inputs, or give its value: y.eval({x: value})"
                if v.name and any(i.name == v.name for i in allowed):
                    advice = f"The input {v.name} is another variable: make one, and use it twice"
                if v.is_clone:
                    advice = "x.clone() is a new variable without a value; x.copy() has that of x"
                raise MissingInputError(
                    f"the graph needs {v} of type {v.type}, which is neither an input of the "
                    f"function, nor shared, nor given by givens. {advice}"
                )

    # -- reading ------------------------------------------------------------------------------

    def toposort(self) -> list[Apply]:
        """Nodes, inputs first."""
        if self._order is None:
            self._order = toposort(self.outputs)
        return self._order.copy()

    @property
    def apply_nodes(self) -> set[Apply]:
        """All nodes (Theano's name)."""
        return set(self.nodes)

    @property
    def variables(self) -> list[Variable]:
        """All variables, inputs first."""
        seen = dict.fromkeys(self.inputs)
        for node in self.toposort():
            seen.update(dict.fromkeys(node.inputs))
            seen.update(dict.fromkeys(node.outputs))
        seen.update(dict.fromkeys(self.outputs))
        return list(seen)

    def shared(self) -> list[Shared]:
        """Shared variables that the graph reads."""
        return [v for v in self.variables if isinstance(v, Shared) and v in self.clients]

    def users(self, v: Variable) -> list[Client]:
        """Readers of ``v``: ``(node, index)``, or ``(None, index)`` for an output of the graph."""
        return list(self.clients.get(v, ()))

    def is_output(self, v: Variable) -> bool:
        """Whether ``v`` is an output of the graph."""
        return any([node is None for node, _ in self.clients.get(v, ())])

    def is_update(self, v: Variable) -> bool:
        """Whether ``v`` is the new value of a shared variable."""
        return any(node is None and i in self.updates for node, i in self.users(v))

    def user_nodes(self, v: Variable) -> list[Apply]:
        """Nodes that read ``v``, each once."""
        return list(dict.fromkeys(n for n, _ in self.clients.get(v, ()) if n is not None))

    # -- changing -----------------------------------------------------------------------------

    def replace(self, old: Variable, new: Variable, reason: str = "") -> None:
        """Let all readers of ``old`` read ``new``.

        Raises :class:`RewriteError` if dtype, ndim or a broadcastable dimension would change.
        """
        self._replace_all([(old, new)], reason)

    def replace_all(self, pairs: Iterable[tuple[Variable, Variable]], reason: str = "") -> None:
        """Several replacements at once."""
        self._replace_all(list(pairs), reason)

    def redirect(
        self, readers: Iterable[Client], old: Variable, new: Variable, reason: str = ""
    ) -> None:
        """Let only these readers of ``old`` (entries of :meth:`users`) read ``new``."""
        _check_same_type(old, new, reason)
        readers = list(readers)
        new, made = self._import(new)
        _give_origins(made, old, readers)
        twins: list[tuple[Variable, Variable]] = []
        for client in readers:
            if client in self.clients.get(old, ()) and client[0] not in made and new is not old:
                twins += self._redirect(client, old, new)
        self._replace_all(twins, reason)
        self._prune([old, new])

    def _replace_all(self, pairs: list[tuple[Variable, Variable]], reason: str) -> None:
        for old, wanted in pairs:  # before anything changes
            _check_same_type(old, wanted, reason)
        suspects: list[Variable] = []
        pending = pairs[::-1]
        while pending:
            old, wanted = pending.pop()
            _check_same_type(old, wanted, reason)
            new, made = self._import(wanted)
            if old is new:
                continue
            _give_origins(made, old, self.clients.get(old, ()))
            if new.name is None and new.owner is not None:
                new.name = old.name
            for client in list(self.clients.get(old, ())):
                if client[0] not in made:  # the replacement of ``old`` may itself read ``old``
                    pending += self._redirect(client, old, new)
            suspects += [old, new]
        self._prune(suspects)

    def _redirect(
        self, client: Client, old: Variable, new: Variable
    ) -> list[tuple[Variable, Variable]]:
        node, index = client
        self.changed, self.in_vain = True, frozenset()
        self._remove_client(old, client)
        if node is None:
            self.outputs[index] = new
            self._add_client(new, client)
            return []
        self._forget(node)
        node.inputs = (*node.inputs[:index], new, *node.inputs[index + 1 :])
        self._add_client(new, client)
        twin = self._remember(node)
        if twin is not node:
            return list(zip(node.outputs, twin.outputs, strict=True))
        for callback in self.on_new_node:
            callback(node)
        return []

    def _import(self, v: Variable) -> tuple[Variable, set[Apply | None]]:
        """Add the new nodes that ``v`` needs; returns ``v`` after merging, and those nodes."""
        if v.owner is None or v.owner in self.nodes:
            return self._settled(v, {}), set()
        merged: dict[Variable, Variable] = {}
        fresh = new_nodes([v], self.nodes)
        for node in fresh:
            self._adopt(node, merged)
        return merged.get(v, v), {n for n in fresh if n in self.nodes}

    def _adopt(self, node: Apply, merged: dict[Variable, Variable]) -> None:
        node.inputs = tuple([self._settled(v, merged) for v in node.inputs])
        twin = self._remember(node)
        if twin is not node:
            merged.update(zip(node.outputs, twin.outputs, strict=True))
            return
        self.nodes[node] = None
        for i, v in enumerate(node.inputs):
            self._add_client(v, (node, i))
        for callback in self.on_new_node:
            callback(node)

    def _settled(self, v: Variable, merged: Mapping[Variable, Variable]) -> Variable:
        if self.merge and isinstance(v, Constant):
            return self._constants.setdefault(v.key(), v)
        return merged.get(v, v)

    def _key(self, node: Apply) -> Any:
        inputs = node.inputs
        if len(inputs) == 2 and getattr(node.op, "commutative", False):
            # ``2 * x`` and ``x * 2`` stay two nodes: a rewrite turns one into the other, and its
            # result must not be merged with the node that it replaces.
            alike = isinstance(inputs[0], Constant) == isinstance(inputs[1], Constant)
            inputs = inputs[::-1] if alike and id(inputs[0]) > id(inputs[1]) else inputs
        return (node.op, inputs, None if node.hints is NO_HINTS else node.hints)

    def _remember(self, node: Apply) -> Apply:
        if not self.merge or node.op.unmergeable:
            return node
        return self._known.setdefault(self._key(node), node)

    def _forget(self, node: Apply) -> None:
        key = self._key(node)
        if self._known.get(key) is node:
            del self._known[key]

    def _add_client(self, v: Variable, client: Client) -> None:
        self._order = None
        self.clients.setdefault(v, {})[client] = None

    def _remove_client(self, v: Variable, client: Client) -> None:
        self._order = None
        users = self.clients[v]
        del users[client]
        if not users:
            del self.clients[v]

    def _prune(self, suspects: list[Variable]) -> None:
        stack = [v.owner for v in suspects if v.owner is not None]
        while stack:
            node = stack.pop()
            if node not in self.nodes:
                continue
            if any([o in self.clients for o in node.outputs]):
                for callback in self.on_fewer_readers:
                    callback(node)
                continue
            del self.nodes[node]
            self._forget(node)
            for i, v in enumerate(node.inputs):
                self._remove_client(v, (node, i))
                if v.owner is not None:
                    stack.append(v.owner)

    # -- copies -------------------------------------------------------------------------------

    def clone(self) -> tuple[FunctionGraph, dict[Variable, Variable]]:
        """A copy, and the map from variables here to those there.

        Its ``original`` has the variables of the user's graph, too, whose stable forms rewrites
        look for.
        """
        other = FunctionGraph(self.inputs, self.outputs, merge=self.merge)
        other.updates, other.lent = dict(self.updates), self.lent
        copies = other.original
        other.original = {u: copies[v] for u, v in self.original.items() if v in copies}
        return other, copies

    def __reduce__(self) -> tuple[object, ...]:
        from symdnn.graph.pickling import Bundle

        return _restored, (Bundle([*self.inputs, *self.outputs]), len(self.inputs), self.merge)

    def __deepcopy__(self, memo: dict[int, object]) -> FunctionGraph:
        return self.clone()[0]

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        ins, outs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"FunctionGraph([{ins}] -> [{outs}], {len(self.nodes)} nodes)"


def _restored(graph: Any, count: int, merge: bool) -> FunctionGraph:
    return FunctionGraph(graph.variables[:count], graph.variables[count:], merge=merge)


def _give_origins(made: Iterable[Apply | None], old: Variable, readers: Iterable[Client]) -> None:
    """Give nodes without an origin that of the value they stand for, or else of a reader.

    An input that is at once an output has neither: there it is the line of the compilation.
    """
    without = [node for node in made if node is not None and not node.origin]
    if without:
        makers = (old.owner, *(node for node, _ in readers))
        origin = next((n.origin for n in makers if n is not None and n.origin), None) or here()
        for node in without:
            node.origin = origin


def _check_same_type(old: Variable, new: Variable, reason: str) -> None:
    a, b = old.type, new.type
    if isinstance(a, OpaqueType) or isinstance(b, OpaqueType):
        fits = a == b
    else:
        fits = a.dtype == b.dtype and a.ndim == b.ndim
        fits = fits and all(not x or y for x, y in zip(a.broadcastable, b.broadcastable))
    if not fits:
        raise RewriteError(f"{reason or 'replace'}: {old} of type {a} by {new} of type {b}")
