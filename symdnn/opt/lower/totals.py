"""Sums of sums as one op: the norm of all gradients, penalties on all weights.

An optimiser that clips gradients by their norm, or a loss with a penalty, adds the sums of a
hundred arrays. On a GPU each sum is a launch that takes longer to start than to run. The sums that
only their common total reads become one :class:`Totals`, which is a few launches.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.arithmetic import Add, Cast, add
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.totals import Totals
from symdnn.rewriting.facts import all_ones
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite

#: Fewer sums are left to fusion, which may join them with the ops that make their arrays.
_LEAST_SUMS = 4
_DTYPES = ("float32", "float64")


@graph_rewrite("lower", tags=("fusion",), name="join_totals")
def join_totals(context: Context) -> None:
    """Sums of whole arrays that are only added up become one node."""
    if context.target.kind != "cuda" or context.inner:
        return
    for node in reversed(context.fgraph.toposort()):
        if node in context.fgraph.nodes and _adds(node.outputs[0]):
            _join(context, node)


def _adds(v: Variable) -> bool:
    """Whether a scalar is the sum of others."""
    made = v.owner
    return made is not None and isinstance(made.op, Add) and _is_scalar(v)


def _is_scalar(v: Variable) -> bool:
    return v.type.ndim == 0 and v.type.dtype in _DTYPES


def _join(context: Context, node: Apply) -> None:
    tree, pending = {node}, list(node.inputs)
    sums, rest = list[Apply](), list[Variable]()
    while pending:
        v = pending.pop(0)
        alone = v.type == node.outputs[0].type and _read_only_by(context, v, tree)
        if alone and _adds(v) and context.only_user(v):
            assert v.owner is not None
            tree.add(v.owner)
            pending = [*v.owner.inputs, *pending]
        elif alone and (found := _whole_sum(context, v)) is not None:
            sums.append(found)
        else:
            rest.append(v)
    if len(sums) < _LEAST_SUMS:
        return
    with inherit(node.origin, node.hints, node.written):
        terms = [_term(context, s) for s in sums]
        total: Variable = Totals(tuple(p for p, *_ in terms))(*(x for _, x, _ in terms))
        for v in rest:
            total = add(total, v)
    context.replace([(node.outputs[0], total)], "join_totals")


def _read_only_by(context: Context, v: Variable, tree: set[Apply]) -> bool:
    return all(n in tree for n, _ in context.fgraph.users(v))


def _whole_sum(context: Context, v: Variable) -> Apply | None:
    """The sum behind a scalar, of an array that exists anyway."""
    made = v.owner
    while made is not None and isinstance(made.op, DimShuffle) and all_ones(made.inputs[0]):
        if not context.only_user(made.inputs[0]):
            return None
        made = made.inputs[0].owner
    op: Any = None if made is None else made.op
    if made is None or not isinstance(op, Sum) or made.hints or not all_ones(made.outputs[0]):
        return None
    if op.acc_dtype != v.type.dtype or op.dtype != v.type.dtype:
        return None
    _, source, reader = _term(context, made)
    if source.type.ndim == 0 or isinstance(source, Constant) or not source.type.is_float:
        return None
    computed = source.owner is not None and isinstance(source.owner.op, Elemwise)
    readers = {n for n, _ in context.fgraph.users(source)}
    return made if not computed or readers - {reader} else None


def _term(context: Context, node: Apply) -> tuple[ScalarProgram, Variable, Apply]:
    """The summand for each element of the array behind a sum, that array, and its reader."""
    x = node.inputs[0]
    reader: Apply = node
    chain: list[ScalarProgram] = []
    while (program := _of_one_array(context, x)) is not None:
        assert x.owner is not None
        chain.append(program)
        reader = x.owner
        x = reader.inputs[0]
    builder = Builder([x.type.dtype])
    element = builder.input(0)
    for program in reversed(chain):
        (element,) = builder.inline(program, [element] * len(program.inputs))
    return builder.program([element.cast(node.outputs[0].type.dtype)]), x, reader


def _of_one_array(context: Context, x: Variable) -> ScalarProgram | None:
    """The program of an elementwise node of one array whose result has one reader."""
    made = x.owner
    if made is None or not isinstance(made.op, Elemwise) or not context.only_user(x):
        return None
    if made.op.unmergeable or len(set(made.inputs)) > 1 or made.inputs[0].type.is_complex:
        return None
    return meaning(made.op, tuple(w.type.dtype for w in made.inputs))


@node_rewrite(Totals, phase="epilogue", tags=("fusion",), name="totals_of_16_bits")
def totals_of_16_bits(node: Apply, context: Context) -> Variable | None:
    """The kernel widens its input, so that no widened copy is stored."""
    programs, inputs = [], []
    op: Any = node.op
    for program, v in zip(op.programs, node.inputs, strict=True):
        cast = v.owner is not None and isinstance(v.owner.op, Cast) and not v.owner.hints
        x = v.owner.inputs[0] if cast and v.owner is not None else v
        if x is v or not is_narrow_float(x.type.dtype):
            x = v
        builder = Builder([x.type.dtype])
        value = builder.input(0).cast(v.type.dtype)
        programs.append(
            builder.program(builder.inline(program, [value])) if x is not v else program
        )
        inputs.append(x)
    return None if inputs == list(node.inputs) else Totals(tuple(programs))(*inputs)


RULES = (join_totals, totals_of_16_bits)
