"""Linear algebra for a described GPU: what is on the device, and by which routines."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.graph.evaluate import evaluate
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.solve import Solve
from tests.seeded import new_rng

L = T.linalg


def planned(inputs, outputs):
    return symdnn.function(inputs, outputs, mode=Mode(target="cuda:sm_90"))


def ops_of(f):
    return {type(node.op) for node in f.fgraph.apply_nodes}


@pytest.mark.parametrize("lower", [True, False])
def test_a_symmetric_system_is_solved_by_lu(lower):
    a, b = T.dmatrices("a", "b")
    f = planned([a, b], L.solve(a, b, "sym", lower=lower))
    assert {LUFactor, LUSolve} <= ops_of(f)
    assert Solve not in ops_of(f)
    rng = new_rng()
    x, y = rng.standard_normal((4, 4)) + 4 * np.eye(4), rng.standard_normal((4, 2))
    (found,) = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (x, y))))
    whole = np.tril(x) + np.tril(x, -1).T if lower else np.triu(x) + np.triu(x, 1).T
    np.testing.assert_allclose(found, np.linalg.solve(whole, y), rtol=1e-9)


def test_what_has_a_kernel_stays_on_the_device():
    a, b = T.fmatrices("a", "b")
    cost = (
        L.solve(a, b).sum() + T.log(abs(L.det(a))) + L.norm(L.svd(a, False)[0])
        + L.eigvalsh(a).sum() + L.norm(L.cholesky(a)) + L.norm(L.qr(a)[0]) + L.norm(L.pinv(a))
        + L.norm(L.lstsq(a, b)[0]) + L.norm(L.inv(a)) + L.norm(L.expm(a))
    )  # fmt: skip
    f = planned([a, b], [cost, *T.grad(cost, [a, b])])
    report = str(f.lowering_report())
    assert "on the host" not in report
    assert " cpu " not in report


def test_what_has_none_is_computed_on_the_host_and_said():
    a = T.fmatrix("a")
    f = planned([a], [*L.eig(a)])
    report = str(f.lowering_report())
    assert "on the host: there is no cuda kernel for Eig" in report
