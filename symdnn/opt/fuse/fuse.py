"""Fusion: groups of elementwise nodes become one node, and reductions take their elementwise input.

:mod:`~symdnn.opt.fuse.groups` says which nodes are computed together,
:mod:`~symdnn.opt.fuse.recompute` what a group computes again instead of reading it, and
:mod:`~symdnn.opt.fuse.body` makes the scalar program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symdnn.graph.origin import Origin, inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Accumulate, Reduce
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.elementwise.arithmetic import IntDiv, Mod
from symdnn.ops.lowered.fused import FusedReduce, fused_elementwise
from symdnn.opt.fuse.body import Body
from symdnn.opt.fuse.groups import (
    MAX_REDUCTIONS,
    Groups,
    Member,
    fusable_program,
    number_in,
    reduction_in,
    widened,
)
from symdnn.opt.fuse.recompute import VALUE_LIMIT_ADDITIONS, is_expanded, recomputed_values
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("fuse", tags=("fusion",), name="fuse_elementwise")
def fuse_elementwise(context: Context) -> None:
    """Each group of elementwise nodes becomes one node."""
    groups = Groups(context)
    pieces = groups.groups()
    recomputed = recomputed_values(groups, pieces)
    for group, again in zip(pieces, recomputed.by_group, strict=True):
        alone = group[0].node
        joined = len(group) > 1 or again or groups.reads_widened(alone)
        if joined or _reads_rounded_constant(alone) or _divides_by_number(alone):
            stored = [v for v in groups.stored_values(group) if v not in recomputed.values]
            _replace(groups, group, stored, again)


def _reads_rounded_constant(node: Apply) -> bool:
    """Whether a node reads a constant rounded to 16 bits: a program has the exact number."""
    return any(
        isinstance(v, Constant) and v.exact is not None and v.exact != float(v.data.reshape(()))
        for v in node.inputs
    )


def _divides_by_number(node: Apply) -> bool:
    """Whether integers are divided by a constant: a program has it, and multiplies instead."""
    if not isinstance(node.op, IntDiv | Mod) or not node.outputs[0].type.is_discrete:
        return False
    return number_in(node.inputs[1]) is not None


def _replace(
    groups: Groups,
    group: Sequence[Member],
    stored_values: list[Variable],
    again: Mapping[Variable, ScalarProgram],
) -> None:
    last = group[-1].node
    with inherit(joined_origin([m.node for m in group]), last.hints):
        body = Body(groups, group, again)
        if not body.inputs or not stored_values:
            return
        program = body.builder.program([part for v in stored_values for part in body.values[v]])
        dtypes = [[v.type.dtype for v in vs] for vs in (body.inputs, stored_values)]
        made = fused_elementwise(program, *dtypes).make_node(*body.operands()).outputs
    pairs = [(old, new) for old, new in zip(stored_values, made, strict=True)]
    if all(old.type.ndim == new.type.ndim and _keeps_broadcasting(old, new) for old, new in pairs):
        groups.fgraph.replace_all(pairs, "fuse_elementwise")


def joined_origin(nodes: Sequence[Apply]) -> Origin:
    """The origin of the last node, with the origins of all."""
    return Origin.of_several([(type(n.op).__name__, n.origin) for n in nodes])


def joined_programs(
    pairs: Sequence[tuple[Apply, ScalarProgram]],
) -> tuple[list[Variable], Builder, dict[Variable, Scalar]]:
    """What nodes read that are computed together, a builder with their programs, and their values.

    A node may read results of those before it.
    """
    made = {v for node, _ in pairs for v in node.outputs}
    operands = list(dict.fromkeys(v for n, _ in pairs for v in n.inputs if v not in made))
    builder = Builder([v.type.dtype for v in operands])
    values = {v: builder.input(i) for i, v in enumerate(operands)}
    for node, program in pairs:
        results = builder.inline(program, [values[v] for v in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return operands, builder, values


def without_numbers(
    program: ScalarProgram, inputs: Sequence[Variable]
) -> tuple[ScalarProgram, list[Variable]]:
    """The program with its constant operands, and the others, each once."""
    operands = list(dict.fromkeys(v for v in inputs if number_in(v) is None))
    b = Builder([v.type.dtype for v in operands])
    given = [
        b.input(operands.index(v)) if number_in(v) is None else b.const(number_in(v), v.type.dtype)
        for v in inputs
    ]
    return b.program(b.inline(program, given)), operands


def _keeps_broadcasting(old: Variable, new: Variable) -> bool:
    """Whether the new type has size 1 in all dimensions where the old type has it."""
    return all(not a or b for a, b in zip(old.type.broadcastable, new.type.broadcastable))


@graph_rewrite("fuse", tags=("fusion",), name="fuse_reductions")
def fuse_reductions(context: Context) -> None:
    """An elementwise node that only reductions read becomes part of their kernel."""
    places = Places(context.fgraph, context.target, inner=context.inner)
    for node in context.fgraph.toposort():
        if node in context.fgraph.nodes and places(node) == context.target.place:
            program = fusable_program(node)
            if program is not None:
                fuse_into_readers(context, node, program)


#: A reduction, its neutral op, and the number of the result that it reads.
_Reader = tuple[Apply, Reduce, int]


def fuse_into_readers(context: Context, node: Apply, program: ScalarProgram) -> None:
    """Fuse ``node`` with its readers, if all of them are reductions: over the same axes, or of
    what each kernel makes again: a cast from 16 bits, or a few operations on far smaller arrays."""
    found: list[_Reader] = []
    for i, v in enumerate(node.outputs):
        for user, _ in context.fgraph.users(v):
            op = None if user is None else reduction_in(user)
            if op is None or user is None:
                return
            found.append((user, op, i))
    kinds = dict.fromkeys((op.axes, op.keepdims) for _, op, _ in found)
    parts = [[r for r in found if (r[1].axes, r[1].keepdims) == kind] for kind in kinds]
    again = widened(node.outputs[0]) is not None or _is_cheap(context, node, program)
    if (len(parts) > 1 and not again) or not node.inputs:
        return
    fused = [_with_readers(program, part) for part in parts]
    kind = context.target.kind
    if not all(
        len(part) <= MAX_REDUCTIONS and context.capabilities.fuses(both, kind)
        for part, both in zip(parts, fused, strict=True)
    ):
        return
    for part, both in zip(parts, fused, strict=True):
        first = part[0][0]
        with inherit(joined_origin([node, first]), first.hints):
            made = both(*node.inputs)
            pairs = [(user.outputs[0], new) for (user, _, _), new in zip(part, made, strict=True)]
            context.replace(pairs, "fuse_reductions")


def _is_cheap(context: Context, node: Apply, program: ScalarProgram) -> bool:
    """Whether several kernels compute ``node`` again sooner than they read its results."""
    passes = 3  # that it saves: one writes the results, two read them
    limit = passes * VALUE_LIMIT_ADDITIONS.get(context.target.kind, 0)
    return program.cost <= limit and is_expanded(node)


def _with_readers(program: ScalarProgram, readers: Sequence[_Reader]) -> FusedReduce:
    """Reductions of the results of a program."""
    chosen = Builder(program.inputs)
    results = chosen.inline(program, [chosen.input(i) for i in range(len(program.inputs))])
    reduced = chosen.program([unrounded(results[i], op) for _, op, i in readers])
    return FusedReduce(reduced, tuple(op for _, op, _ in readers))


def unrounded(x: Scalar, op: Reduce) -> Scalar:
    """The value to sum: a 16-bit result before it is rounded, where the accumulator is wide."""
    wide = isinstance(op, Accumulate) and is_narrow_float(x.dtype)
    return x.cast("float32") if wide and TensorType(op.acc_dtype).is_float else x  # type: ignore[attr-defined]


RULES = (fuse_elementwise, fuse_reductions)
