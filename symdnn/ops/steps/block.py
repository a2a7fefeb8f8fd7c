"""Graphs as statements: the order of nodes, the memory of their results, lazy branches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.slices import is_slice
from symdnn.ops.control.control import IfElse
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.shape import DimShuffle, ShapeI, ShapeVector
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.steps.code import Code, Given, NotLowered, same
from symdnn.ops.steps.statements import Branch, Statement, View

#: What a variable is: a view, an array that is known when the program is made, or one on demand.
Value = View | np.ndarray[Any, Any] | Given
#: Elements of arrays that are computed when the program is made.
_MAX_KNOWN = 64

Rule = Callable[["Block", Apply[Any]], "list[Statement] | None"]
Rules = Mapping[type, Rule]


class Block:
    """Lowers the graph from variables with values, in ``env``, to ``outputs``.

    ``targets`` says where outputs are to be written, ``owned`` are names of memories that the block
    may overwrite once nothing reads them any more. ``states`` says where outputs are to be moved
    in the end, which is in such memories.
    """

    def __init__(
        self, code: Code, rules: Rules, env: dict[Variable, Value], nodes: Sequence[Apply],
        outputs: Sequence[Variable], targets: Mapping[Variable, View], owned: set[str],
        states: Mapping[Variable, View],
    ) -> None:  # fmt: skip
        self.code, self.rules, self.env = code, rules, env
        self.nodes, self.targets, self.owned, self.states = nodes, targets, owned, states
        self.homes = _homes(nodes, outputs)
        self._uses = Counter(v for n in nodes for v in n.inputs) + Counter(outputs)
        self._outputs = set(outputs)
        self._readers: dict[Variable, list[Apply]] = {}
        for n in nodes:
            for v in n.inputs:
                self._readers.setdefault(v, []).append(n)
        #: Reads to come of each memory.
        self._pending: Counter[str] = Counter()
        for v, value in env.items():
            if isinstance(value, View | Given):
                self._pending[self._base(value)] += self._uses[v]

    # -- values ---------------------------------------------------------------------------------

    def _base(self, value: Value) -> str:
        view = value.view if isinstance(value, Given) else value
        return view.base if isinstance(view, View) else ""

    def set(self, v: Variable, value: Value) -> None:
        """Give a variable its value."""
        self.env[v] = value
        self._pending[self._base(value)] += self._uses[v]

    def known(self, v: Variable) -> Any:
        """The array that a variable is; None if that is not known when the program is made.

        Scalars among the scan's inputs are known, but then the program is for these values alone.
        """
        if isinstance(v, Constant):
            return v.data
        value = self.env[v]
        if isinstance(value, Given):
            self.code.values[value.number] = value.value
            return np.asarray(value.value, v.type.numpy)
        if isinstance(value, View):
            return self._computed(v) if self._computable(v) else None
        return value

    def _computable(self, v: Variable) -> bool:
        """Whether an integer is computed from numbers that are known, or are on demand."""
        if isinstance(v, Constant) or not isinstance(self.env.get(v), View | None):
            return True
        node = v.owner
        if node is None or not v.type.is_integer_scalar or node.op.host_callback:
            return False
        if node.op.unmergeable or not node.op.folds:
            return False
        return all(map(self._computable, node.inputs))

    def _computed(self, v: Variable) -> Any:
        node = v.owner
        if isinstance(v, Constant) or node is None or not isinstance(self.env.get(v), View | None):
            return self.known(v)
        found = node.op.compute(*map(self._computed, node.inputs))
        return np.asarray(found[node.outputs.index(v)])

    def is_known(self, v: Variable) -> bool:
        """Whether :meth:`known` finds a value without making the program depend on it."""
        return isinstance(v, Constant) or isinstance(self.env[v], np.ndarray)

    def view(self, v: Variable) -> View:
        """Where the elements of a variable are."""
        if isinstance(v, Constant) and v not in self.env:
            self.env[v] = self.code.constant(v.data)
        value = self.env[v]
        if isinstance(value, Given):
            return value.view
        if isinstance(value, np.ndarray):
            return self.code.constant(value)
        return value

    def env_value(self, v: Variable) -> Any:
        """What a variable is, for a graph inside of a node's."""
        return v.data if isinstance(v, Constant) and v not in self.env else self.env[v]

    def reads(self, v: Variable) -> bool:
        """Whether a node, or an output, reads a variable."""
        return self._uses[v] > 0

    def shape(self, v: Variable) -> tuple[int, ...]:
        """The sizes of a variable."""
        if isinstance(v, Constant):
            return tuple(v.data.shape)
        value = self.env[v]
        return () if isinstance(value, Given) else tuple(value.shape)

    def shapes(self, node: Apply) -> list[tuple[int, ...]]:
        """The sizes of a node's results, none of which is 0; reads scalars that they depend on."""
        made = self._sizes(node)
        if any(0 in s for s in made):
            raise NotLowered("an array has no elements")
        return made

    def _sizes(self, node: Apply) -> list[tuple[int, ...]]:
        host: dict[int, int] = {}
        for i in node.op.host_inputs:
            number = self.known(node.inputs[i])
            if number is not None:
                host[i] = int(number)
        types = [v.type for v in node.inputs]
        try:
            found = node.op.shapes(types, [self.shape(v) for v in node.inputs], host)
        except KeyError:
            found = None
        if found is None or any(not isinstance(n, int | np.integer) for s in found for n in s):
            raise NotLowered(f"a size of {node.op} is not known")
        return [tuple(int(n) for n in s) for s in found]

    def make(self, v: Variable, shape: Sequence[int]) -> View:
        """Memory for a variable's value; its target, if it has one."""
        target = self.targets.get(v)
        if target is None or target.shape != tuple(shape):
            order = self._order(v, len(shape))
            target = self.code.buffer(v.type.dtype, [shape[d] for d in order])
            target = target.order([order.index(d) for d in range(len(order))])
            self.owned.add(target.base)
        self.set(v, target)
        return target

    def _order(self, v: Variable, ndim: int) -> list[int]:
        """The order of a value's dimensions in memory: that of the loops which alone read it."""
        first = self._axis_of_steps(v) if ndim > 1 else 0
        return sorted(range(ndim), key=lambda d: (d != first, d))

    def _axis_of_steps(self, v: Variable) -> int | None:
        """The dimension of ``v`` whose entries are read in turn, step by step; None if any other
        way of reading it is known."""
        axes: set[int | None] = set()
        for node in self._readers.get(v, ()):
            op: Any = node.op
            if isinstance(op, Scan):
                axes.add(0 if v in op.split(node.inputs).sequences else None)
            elif isinstance(op, DimShuffle):
                below = self._axis_of_steps(node.outputs[0])
                axis = None if below is None else op.pattern[below]
                axes.add(axis if isinstance(axis, int) else None)
            elif isinstance(op, Subtensor) and all(map(is_slice, op.index)):
                axes.add(self._axis_of_steps(node.outputs[0]))
            elif not isinstance(op, ShapeI):
                axes.add(None)
        return axes.pop() if len(axes) == 1 and v not in self._outputs else None

    def overwrites(self, v: Variable) -> View | None:
        """The memory of a node's input, where the node may write its result; None if not.

        Nothing reads that memory after the node, which is being lowered.
        """
        value = self.env.get(v)
        if not isinstance(value, View) or value.base not in self.owned or not value.is_dense:
            return None
        return value if self._pending[value.base] <= 1 else None

    # -- nodes ----------------------------------------------------------------------------------

    def lowered(self, path: tuple[Any, ...] = ()) -> list[Statement]:
        """The statements of all nodes; of those in one branch, with its ``path``."""
        found: list[Statement] = []
        for node in self.nodes:
            if self.homes.get(node) == path:
                found += self._node(node, path)
        return found

    def _node(self, node: Apply, path: tuple[Any, ...]) -> list[Statement]:
        if isinstance(node.op, IfElse):
            found = self._branch(node, node.op.count, path)
        elif self._folds(node):
            found = []
        else:
            found = self.by_rule(node)
        for v in node.inputs:
            if not isinstance(v, Constant):
                self._pending[self._base(self.env[v])] -= 1
        return found

    def by_rule(self, node: Apply) -> list[Statement]:
        """The statements of a node, without counting it as a reader."""
        if any(not isinstance(v.type, TensorType) for v in (*node.inputs, *node.outputs)):
            raise NotLowered(f"{node.op} has values that are no tensors")
        if not isinstance(node.op, ShapeI | ShapeVector) and self._is_empty(node):
            return []
        for kind in type(node.op).__mro__:
            rule = self.rules.get(kind)
            found = None if rule is None else rule(self, node)
            if found is not None:
                return found
        if isinstance(node.op, Lowered) and (made := node.op.expanded(*node.inputs)) is not None:
            return self.expression(node, made)
        raise NotLowered(f"there is no code for {node.op}")

    def _is_empty(self, node: Apply) -> bool:
        """Whether a node of inputs without elements has nothing to do; its results are set then.

        An increment by such an input has: the rest is copied. Other ops are not lowered that make
        elements of none.
        """
        if not any(0 in self.shape(v) for v in node.inputs):
            return False
        indexed = isinstance(node.op, IncSubtensor | Subtensor)
        if indexed and 0 not in self.shape(node.inputs[0]):
            return False
        shapes = self._sizes(node)
        if not all(0 in shape for shape in shapes):
            raise NotLowered("an array has no elements")
        for v, shape in zip(node.outputs, shapes):
            whole = self.code.buffer(v.type.dtype, [max(n, 1) for n in shape])
            self.set(v, replace(whole, shape=shape))
        return True

    def expression(self, node: Apply, outputs: Sequence[Variable]) -> list[Statement]:
        """The statements of an expression of a node's inputs, in place of the node."""
        inner = toposort(outputs, node.inputs)
        inner = [n for n in inner if n.outputs[0] not in self.env]
        targets = {o: self.targets[v] for v, o in zip(node.outputs, outputs) if v in self.targets}
        block = Block(self.code, self.rules, self.env, inner, outputs, targets, set(), {})
        found = block.lowered()
        self.owned |= block.owned
        for v, o in zip(node.outputs, outputs, strict=True):
            self.set(v, block.view(o))
        return found

    def _folds(self, node: Apply) -> bool:
        """Whether the node is evaluated here, since all its inputs are known and small."""
        if not all(map(self.is_known, node.inputs)) or node.op.unmergeable or not node.op.folds:
            return False
        if any(v in self.targets for v in node.outputs) or node.op.host_callback:
            return False
        if sum(prod(s) for s in self._sizes(node)) > _MAX_KNOWN:
            return False
        for v, value in zip(node.outputs, node.op.compute(*map(self.known, node.inputs))):
            self.set(v, np.asarray(value))
        return True

    def _branch(self, node: Apply, count: int, path: tuple[Any, ...]) -> list[Statement]:
        yes, no = node.inputs[1 : 1 + count], node.inputs[1 + count :]
        blocks = [self.lowered((*path, node, k)) for k in range(2)]
        for v, a, b in zip(node.outputs, yes, no, strict=True):
            if self.shape(a) != self.shape(b):
                raise NotLowered("branches of different shapes")
            out = self.make(v, self.shape(a))
            blocks[0] += same(out, self.view(a))
            blocks[1] += same(out, self.view(b))
        return [Branch(self.view(node.inputs[0]), tuple(blocks[0]), tuple(blocks[1]))]


def _homes(nodes: Sequence[Apply], outputs: Sequence[Variable]) -> dict[Apply, tuple[Any, ...]]:
    """For each node the branches inside of which it runs, as (choice, 0 or 1, choice, ...)."""
    found: dict[Apply, tuple[Any, ...]] = {}

    def used(v: Variable, path: tuple[Any, ...]) -> None:
        if v.owner is not None:
            before = found.get(v.owner)
            found[v.owner] = path if before is None else _common(before, path)

    for v in outputs:
        used(v, ())
    for node in reversed(nodes):
        path = found.get(node, ())
        for i, v in enumerate(node.inputs):
            if isinstance(node.op, IfElse) and i > 0:
                used(v, (*path, node, int(i > node.op.count)))
            else:
                used(v, path)
    return found


def _common(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The common beginning, of whole pairs."""
    n = 0
    while n < min(len(a), len(b)) and a[n : n + 2] == b[n : n + 2]:
        n += 2
    return a[:n]
