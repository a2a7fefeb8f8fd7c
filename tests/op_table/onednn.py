"""oneDNN's ops: each means what its neutral op means, so that op's records serve it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.libraries.onednn.rules import ROWS
from tests.op_table import conv, dot, normalization, pool
from tests.op_table.record import OpCase


def lowered(case, neutral, low, layout="NCHW"):
    """The record ``case`` with its node of the neutral op replaced."""

    def build(*vs):
        out = case.build(*vs)
        outs = list(out) if isinstance(out, list | tuple) else [out]
        (node,) = [n for n in toposort(outs) if type(n.op) is neutral]
        made = low(node.op)(*node.inputs)
        new = [made] if isinstance(made, Variable) else list(made)
        instead = dict(zip(node.outputs, new, strict=True))
        found = [instead[v] for v in outs]
        return found[0] if len(found) == 1 else found

    return replace(case, id=f"onednn_{case.id}", ops=(low,), build=build, grad=False)


def built_of_one_op(case, neutral):
    """Whether the outputs of a record are those of one node of the op."""
    vs = [_variable(d) for d in case.draws]
    out = case.build(*vs)
    outs = list(out) if isinstance(out, list | tuple) else [out]
    owners = {v.owner for v in outs}
    return len(owners) == 1 and type(outs[0].owner.op) is neutral


def _variable(draw):
    a = draw(np.random.default_rng(0))
    return TensorType(a.dtype.name, [1 if n == 1 else None for n in a.shape])()


FAMILIES = (conv, dot, normalization, pool)


def cases():
    """For each op that is lowered the first record that is that op alone."""
    found: list[OpCase] = []
    for _, low, ops, _ in ROWS:
        for neutral in ops:
            known = (c for f in FAMILIES for c in f.CASES if neutral in c.ops)
            case = next((c for c in known if built_of_one_op(c, neutral)), None)
            if case is not None:
                found.append(lowered(case, neutral, low))
    return found


CASES = cases()
