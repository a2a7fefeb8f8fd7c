"""Matrix functions that are other ones of matrices on a GPU."""

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.graph.evaluate import evaluate
from symdnn.ops.matrix.determinant import Adjugate
from symdnn.ops.matrix.svd import SVD
from tests.opt.lowering import rewritten


def kinds(fgraph):
    return {type(n.op) for n in fgraph.toposort()}


def test_adjugates_are_made_of_singular_values_on_a_gpu(rng):
    x = T.dmatrix("x")
    out = T.grad(T.linalg.det(x), x)
    found = rewritten([x], [out])
    assert Adjugate not in kinds(found)
    assert SVD in kinds(found)
    for a in (rng.normal(size=(4, 4)), np.diag([1.0, 2.0, 0.0])):
        (got,), (want,) = (evaluate(o, {v: a}) for o, v in
                           ((found.outputs, found.inputs[0]), ([out], x)))  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert Adjugate in kinds(symdnn.function([x], out, mode=symdnn.Mode(target="cpu")).fgraph)
