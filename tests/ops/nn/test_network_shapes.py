"""The shape rules of the network ops on symbols: what a shape rewrite evaluates."""

from __future__ import annotations

import pytest

from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.shape import shape_i
from tests.op_table import lrn_ctc_transformer, normalization, rnn, softmax
from tests.op_table import random as random_table
from tests.test_op_table import draw, outputs, variables

TABLES = (lrn_ctc_transformer, normalization, random_table, rnn, softmax)
CASES = [c for table in TABLES for c in table.CASES]
#: Ops of these modules are ours; the rest of each graph is tested by its own family.
OURS = tuple(
    f"symdnn.ops.{m}"
    for m in ("softmax", "crossentropy", "batchnorm", "random", "dropout", "rnn", "ctc", "lrn")
) + ("symdnn.ops.nn.spatial_transformer",)


def symbolic_shapes(node):
    shapes = [
        tuple(shape_i(v, i) for i in range(v.type.ndim)) if isinstance(v.type, TensorType) else ()
        for v in node.inputs
    ]
    host = {i: node.inputs[i] for i in node.op.host_inputs}
    return node.op.shapes([v.type for v in node.inputs], shapes, host)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_symbolic_shapes_agree_with_values(case):
    arrays = draw(case, 7)
    vs = variables(case, arrays)
    given = dict(zip(vs, arrays, strict=True))
    for node in toposort(outputs(case, vs)):
        if not type(node.op).__module__.startswith(OURS):
            continue
        found = symbolic_shapes(node)
        tensors = [v for v in node.outputs if isinstance(v.type, TensorType)]
        real = [v.shape for v in evaluate(tensors, given)]
        for want, dims in zip(real, found, strict=False):
            symbols = [d if isinstance(d, Variable) else as_variable(int(d)) for d in dims]
            assert tuple(int(n) for n in evaluate(symbols, given)) == tuple(want)


def test_a_static_clash_is_found_before_any_value():
    from symdnn.errors import ShapeMismatch
    from symdnn.ops.nn.softmax import SoftmaxGrad

    t = TensorType("float32", (None, None))
    with pytest.raises(ShapeMismatch):
        SoftmaxGrad(1).shapes([t, t], [(2, 3), (2, 4)], {})
