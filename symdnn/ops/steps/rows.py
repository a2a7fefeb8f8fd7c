"""Fused rows in the step of a loop: their programs, and reductions between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.steps.block import Block
from symdnn.ops.steps.code import NotLowered
from symdnn.ops.steps.statements import Statement


def rows_statements(block: Block, node: Apply) -> list[Statement]:
    """The statements of :class:`~symdnn.ops.lowered.fused_rows.FusedRows`."""
    op: Any = node.op
    whole = np.broadcast_shapes(*(block.shape(v) for v in node.inputs))
    count = np.full((1,) * len(whole), prod(whole[a] for a in op.axes), numpy_dtype(op.work))
    others = tuple(d for d in range(len(whole)) if d not in op.axes)
    values = _applied(op.before, node.inputs[: op.early])
    late, rows = list(node.inputs[op.early :]), list[Variable]()
    for stage in op.stages:
        terms = _applied(stage.terms, [*values, *rows, *late])
        folded = [_folded(stage.kind(i), t, op.axes) for i, t in enumerate(terms)]
        rows += _applied(stage.rows, [*rows, *folded, constant(count)])
    given = [*values, *rows, *late]
    sums = [] if op.sums is None else _applied(op.sums, given)
    results = [*_applied(op.after, given), *(rows[i] for i in op.kept)]
    results += [_folded("sum", s, others) for s in sums]
    for v, made in zip(node.outputs, results, strict=True):
        if v.type.broadcastable != made.type.broadcastable:
            raise NotLowered("a result of rows does not depend on all elements of them")
    return block.expression(node, results)


def _applied(program: ScalarProgram, inputs: Sequence[Variable]) -> list[Variable]:
    return list(FusedElemwise(program).make_node(*inputs).outputs)


def _folded(kind: str, v: Variable, axes: tuple[int, ...]) -> Variable:
    if any(v.type.broadcastable[a] for a in axes):
        raise NotLowered("a term of rows does not depend on all elements of them")
    return operator(kind)(v, axis=axes, keepdims=True)
