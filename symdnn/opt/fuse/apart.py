"""Reductions whose operands an elementwise node computes for them alone compute these themselves.

Where others read results of the node, too (:func:`~symdnn.opt.fuse.fuse.fuse_reductions` has the
rest), its reductions become kernels that read what the node reads, or what it stores anyway. The
bytes decide. What is left of the node joins the only elementwise node that reads it, where that
then reads no more. Reductions over the same axes that read an array become one. At last sums of
everything and elementwise nodes compute again what they read of a node that nothing else reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from symdnn.opt.fuse.fuse import (
    fuse_into_readers,
    joined_origin,
    joined_programs,
    unrounded,
)
from symdnn.opt.fuse.groups import (
    KERNEL_LIMIT_ADDITIONS,
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    MAX_REDUCTIONS,
    fusable_program,
    reduction_in,
)
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.facts import node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: Elements of a row of which kernels of rows take sums (``row_rules``), or that they add by columns
#: (``column_sums``): fewer are too few for a thread, of more the sums do not fit into registers.
_LEAST_ROW, _LONGEST_ROW = 32, 8192
#: What a kernel adds while memory moves a byte.
_ADDITIONS_OF_A_BYTE = 6

#: A reduction, its neutral op, and the number of the result that it reads.
_Reader = tuple[Apply, Reduce, int]


@graph_rewrite("fuse", tags=("fusion",), name="fuse_reductions_apart")
def fuse_reductions_apart(context: Context) -> None:
    """Reductions compute what a node with other readers computes for them alone."""
    if context.target.kind != "cuda":
        return
    places = Places(context.fgraph, context.target, inner=context.inner)
    pending = [n for n in context.fgraph.toposort() if places(n) == context.target.place]
    for node in pending:  # it grows
        program = fusable_program(node) if node in context.fgraph.nodes else None
        if program is not None:
            fuse_into_readers(context, node, program)
        if program is not None and node in context.fgraph.nodes and node.inputs:
            pending += _Parted(context, node, program).part()
    order = context.fgraph.toposort()
    if any(isinstance(node.op, FusedReduce) for node in order):
        places = Places(context.fgraph, context.target, inner=context.inner)
        for node in order:
            program = fusable_program(node)
            if program is not None and places(node) == context.target.place:
                _join_readers(context, node, program, places)


def _join_readers(context: Context, node: Apply, program: ScalarProgram, places: Places) -> None:
    """Let sums of everything and elementwise nodes compute what they read of a node, if nothing
    else reads that and fewer bytes move for what is computed again."""
    users = list(dict.fromkeys(u for v in node.outputs for u in context.fgraph.user_nodes(v)))
    pattern = node.outputs[0].type.broadcastable
    own = [p for u in users if (p := _program_of(u, pattern)) is not None]
    alike = all(u.hints == node.hints and places(u) == context.target.place for u in users)
    sums = any(isinstance(u.op, FusedReduce) for u in users)
    if not (sums and alike and len(own) == len(users)) or program.cost > KERNEL_LIMIT_ADDITIONS:
        return
    if any(map(context.fgraph.is_output, node.outputs)):
        return
    made, saved = set(node.outputs), _full_bytes((*node.inputs, *node.outputs), pattern)
    for user, its in zip(users, own):
        operands = {*user.inputs, *node.inputs} - made
        saved += _full_bytes(user.inputs, pattern) - _full_bytes(operands, pattern)
        if len(operands) > MAX_INPUTS or len(its.body) + len(program.body) > MAX_INSTRUCTIONS:
            return
    if program.cost * (len(users) - 1) < _ADDITIONS_OF_A_BYTE * saved:
        for user, its in zip(users, own):
            _join_reader(context, (node, program), (user, its))


def _join_reader(
    context: Context, maker: tuple[Apply, ScalarProgram], reader: tuple[Apply, ScalarProgram]
) -> None:
    """Let one reader compute what it reads."""
    user, op = reader[0], reader[0].op
    operands, builder, values = joined_programs([maker, reader])
    whole = builder.program([values[v] for v in user.outputs])
    with inherit(joined_origin([maker[0], user]), user.hints):
        both = replace(op, program=whole) if isinstance(op, FusedReduce) else FusedElemwise(whole)
        new = both.make_node(*operands).outputs
    context.replace(list(zip(user.outputs, new, strict=True)), "fuse_reductions_apart")


def _program_of(user: Apply, pattern: tuple[bool, ...]) -> ScalarProgram | None:
    """The program of a sum of everything, or of an elementwise node, of this size."""
    program = user.op.program if isinstance(user.op, FusedReduce) else fusable_program(user)
    if program is None:
        return None
    patterns = zip(*(v.type.broadcastable for v in user.inputs))
    if tuple(all(ones) for ones in patterns) != pattern:
        return None
    if isinstance(user.op, FusedReduce):
        axes = user.op.reductions[0].axes
        return program if all(one or i in axes for i, one in enumerate(pattern)) else None
    return program


def _full_bytes(variables: Iterable[Variable], pattern: tuple[bool, ...]) -> int:
    """Bytes for each element of the arrays of a size among these."""
    full = {v for v in variables if v.type.broadcastable == pattern and not isinstance(v, Constant)}
    return sum(int(v.type.numpy.itemsize) for v in full)


@dataclass(frozen=True)
class _Kernel:
    """Reductions of what a program makes of operands."""

    op: FusedReduce
    operands: list[Variable]
    readers: Sequence[_Reader]

    @property
    def axes(self) -> frozenset[int]:
        """Those that it reduces."""
        return frozenset(self.op.reductions[0].axes)


class _Parted:
    """An elementwise node, its reductions, and the results that others read: those ``kept``."""

    def __init__(self, context: Context, node: Apply, program: ScalarProgram) -> None:
        self.context, self.fgraph, self.node, self.program = context, context.fgraph, node, program
        self.pattern = node.outputs[0].type.broadcastable
        self.readers: list[_Reader] = []
        kept = set[int]()
        for i, v in enumerate(node.outputs):
            for user, _ in self.fgraph.users(v):
                op = None if user is None else reduction_in(user)
                if op is None or user is None or self._is_taken_in(op):
                    kept.add(i)
                else:
                    self.readers.append((user, op, i))
        self.kept = sorted(kept)

    def part(self) -> list[Apply]:
        """Replace reductions, if that saves bytes; the elementwise nodes that are made."""
        if not self.readers:
            return []
        summed = [self.node.outputs[i] for _, _, i in self.readers]
        kept = [self.node.outputs[i] for i in self.kept]
        now = self._bytes(set(summed) - set(kept)) + sum(self._bytes([v]) for v in summed)
        parts = self._parts()
        whole = [self._kernel(p, stored=False) for p in parts]
        best = [self._best([k, self._kernel(p, stored=True)]) for k, p in zip(whole, parts)]
        follower = self._follower()
        if follower is not None and None not in whole:
            both = self._bytes(set(self.node.inputs) & set(follower.inputs))
            saved = 2 * self._bytes(kept) + both
            if self._cost(whole) - saved < min(now, self._cost(best)):
                self._replace_reductions(whole)
                return self._joined(follower)
        if None in best or self._cost(best) >= now:
            return []
        self._replace_reductions(best)
        return self._shrunk()

    def _is_taken_in(self, op: Reduce) -> bool:
        """Whether kernels of rows, or of sums by columns, take a reduction in."""
        long = [i for i, one in enumerate(self.pattern) if not one]
        summed = [i for i in long if i in op.axes]
        if not summed or summed == long:
            return not summed
        every = (*self.node.inputs, *self.node.outputs)
        if summed == long[-len(summed) :]:
            size = _size(every, summed)
            return size is None or size >= _LEAST_ROW
        full = any(v.type.broadcastable == self.pattern for v in self.node.inputs)
        return full and by_columns(op.axes, every)

    def _bytes(self, variables: Iterable[Variable]) -> int:
        """Bytes for each element of the arrays of the node's size among these.

        Slices of one array are read once, about.
        """
        full = [v for v in variables if v.type.broadcastable == self.pattern]
        found = {_sliced(v) for v in full if not isinstance(v, Constant)}
        return sum(int(v.type.numpy.itemsize) for v in found)

    # -- reductions ---------------------------------------------------------------------------

    def _parts(self) -> list[list[_Reader]]:
        """The reductions over the same axes, as many as a kernel can have."""
        kinds: dict[object, list[_Reader]] = {}
        for reader in self.readers:
            kinds.setdefault((reader[1].axes, reader[1].keepdims), []).append(reader)
        return [
            part[i : i + MAX_REDUCTIONS]
            for part in kinds.values()
            for i in range(0, len(part), MAX_REDUCTIONS)
        ]

    def _kernel(self, part: Sequence[_Reader], stored: bool) -> _Kernel | None:
        """A kernel of what the node reads, or also of what it stores; None where it does too much
        or would read nothing of the node's size.
        """
        given, numbers = [*self.node.inputs], dict[int, int]()
        for i in self.kept if stored else ():
            if self.program.outputs[i] >= len(self.program.inputs):
                numbers[self.program.outputs[i]] = len(given)
                given.append(self.node.outputs[i])
        builder = Builder([v.type.dtype for v in given])
        args = [builder.input(i) for i in range(len(self.node.inputs))]
        known = {value: builder.input(at) for value, at in numbers.items()}
        results = builder.inline(self.program, args, known)
        program, used = pruned(builder, [unrounded(results[i], op) for _, op, i in part])
        operands = [given[i] for i in used]
        op = FusedReduce(program, tuple(op for _, op, _ in part))
        few = program.cost <= KERNEL_LIMIT_ADDITIONS and len(operands) <= MAX_INPUTS
        return _Kernel(op, operands, part) if few and self._is_whole(operands) else None

    def _is_whole(self, operands: Sequence[Variable]) -> bool:
        """Whether these broadcast to the node's size."""
        return bool(operands) and all(
            all(v.type.broadcastable[i] for v in operands) == one
            for i, one in enumerate(self.pattern)
        )

    def _best(self, kernels: Iterable[_Kernel | None]) -> _Kernel | None:
        found = [k for k in kernels if k is not None]
        return min(found, key=lambda k: (self._bytes(k.operands), k.op.program.cost), default=None)

    def _cost(self, kernels: Iterable[_Kernel | None]) -> int:
        """Bytes that are read. What one over some of the axes reads is read once (``siblings``)."""
        found = sorted((k for k in kernels if k is not None), key=lambda k: len(k.axes))
        cost = 0
        for i, kernel in enumerate(found):
            before = [v for k in found[:i] if k.axes <= kernel.axes for v in k.operands]
            cost += self._bytes(set(kernel.operands) - set(before))
        return cost

    def _replace_reductions(self, kernels: Iterable[_Kernel | None]) -> None:
        for kernel in kernels:
            assert kernel is not None
            first = kernel.readers[0][0]
            with inherit(joined_origin([self.node, first]), first.hints):
                made = kernel.op(*kernel.operands)
                pairs = [(u.outputs[0], new) for (u, _, _), new in zip(kernel.readers, made)]
                self.context.replace(pairs, "fuse_reductions_apart")

    # -- what is left -------------------------------------------------------------------------

    def _follower(self) -> Apply | None:
        """The only reader besides the reductions, if it is an elementwise node of the size."""
        users = {u for i in self.kept for u, _ in self.fgraph.users(self.node.outputs[i])}
        users -= {user for user, _, _ in self.readers}
        (user,) = users if len(users) == 1 else (None,)
        program = None if user is None else fusable_program(user)
        if user is None or program is None or user.hints != self.node.hints:
            return None
        operands = (set(user.inputs) | set(self.node.inputs)) - set(self.node.outputs)
        steps = len(program.body) + len(self.program.body)
        like = user.outputs[0].type.broadcastable == self.pattern
        fits = len(operands) <= MAX_INPUTS and steps <= MAX_INSTRUCTIONS
        return user if like and fits else None

    def _joined(self, user: Apply) -> list[Apply]:
        """The node becomes part of its reader."""
        program = fusable_program(user)
        assert program is not None
        both = [(self.node, self.program), (user, program)]
        operands, builder, values = joined_programs(both)
        whole = builder.program([values[v] for v in user.outputs])
        return self._replaced([self.node, user], user.outputs, whole, operands)

    def _shrunk(self) -> list[Apply]:
        """The node without the results that nobody reads."""
        kept = [self.node.outputs[i] for i in self.kept]
        if len(kept) in (0, len(self.node.outputs)):
            return []
        builder, given = Builder(self.program.inputs), self.node.inputs
        results = builder.inline(self.program, [builder.input(i) for i in range(len(given))])
        program, used = pruned(builder, [results[i] for i in self.kept])
        operands = [given[i] for i in used]
        if not self._is_whole(operands):
            program, operands = builder.program([results[i] for i in self.kept]), list(given)
        return self._replaced([self.node], kept, program, operands)

    def _replaced(
        self, nodes: Sequence[Apply], old: Sequence[Variable], program: ScalarProgram,
        operands: Sequence[Variable],
    ) -> list[Apply]:  # fmt: skip
        with inherit(joined_origin(nodes), nodes[-1].hints):
            made = FusedElemwise(program).make_node(*operands)
            self.context.replace(zip(old, made.outputs, strict=True), "fuse_reductions_apart")
        return [made]


def _sliced(v: Variable) -> Variable:
    """The array that ``v`` is a slice of, or ``v``."""
    cut = v.owner is not None and isinstance(v.owner.op, Subtensor)
    return node_of(v).inputs[0] if cut else v


def pruned(builder: Builder, outputs: Sequence[Scalar]) -> tuple[ScalarProgram, list[int]]:
    """The program of these values, of the inputs that it reads alone, and their numbers."""
    whole = builder.program(outputs)
    read = {*whole.outputs, *(a for step in whole.body for a in step.args)}
    numbers = [i for i in range(len(whole.inputs)) if i in read]
    own = Builder([whole.inputs[i] for i in numbers])
    args = [own.input(numbers.index(i) if i in read else 0) for i in range(len(whole.inputs))]
    return own.program(own.inline(whole, args)), numbers


def by_columns(axes: Iterable[int], arrays: Sequence[Variable]) -> bool:
    """Whether an elementwise kernel of these arrays adds sums over ``axes`` by columns."""
    long = [i for i, _ in enumerate(arrays[0].type.shape) if not _is_one(arrays, i)]
    summed = [i for i in long if i in axes]
    size = _size(arrays, [i for i in long if i not in summed])
    first = bool(summed) and summed == long[: len(summed)]
    return first and size is not None and _LEAST_ROW <= size <= _LONGEST_ROW


def _is_one(arrays: Sequence[Variable], axis: int) -> bool:
    return all(v.type.broadcastable[axis] for v in arrays)


def _size(arrays: Sequence[Variable], axes: Iterable[int]) -> int | None:
    """The number of elements along some axes; None where it is not known."""
    known = [[n for v in arrays if (n := v.type.shape[i]) not in (None, 1)] for i in axes]
    return prod(sizes[0] for sizes in known) if all(known) else None


RULES = (fuse_reductions_apart,)
