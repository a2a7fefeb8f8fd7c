"""Softmax by SciPy: where it is lowered, what it computes, and that the tag switches it off."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import symdnn
import symdnn.tensor as T
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.libraries.scipy.kernels import facts
from symdnn.libraries.scipy.ops import ScipySoftmax
from symdnn.libraries.table import RULES
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection
from symdnn.rewriting.rewrite import Capabilities


def ops_of(target):
    x = T.dmatrix("x")
    graph = FunctionGraph([x], [T.nnet.softmax(x)])
    optimise(graph, target, Selection(), Capabilities(RULES))
    return {type(n.op) for n in graph.nodes}


def test_it_is_lowered_where_the_library_is():
    assert ops_of(Target("cpu", scipy=(1, 15))) == {ScipySoftmax}
    assert ScipySoftmax not in ops_of(Target("cpu"))
    assert facts()["scipy"] >= (1, 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_it_computes_what_scipy_does(axis, rng):
    x = T.dmatrix("x")
    data = rng.normal(size=(5, 7))
    f = symdnn.function([x], T.nnet.softmax(x, axis=axis), mode=symdnn.Mode(target="cpu"))
    np.testing.assert_allclose(f(data), scipy.special.softmax(data, axis), rtol=1e-14)
    assert "scipy.softmax" in str(f.lowering_report())
    own = symdnn.Mode(target="cpu").excluding("scipy")
    g = symdnn.function([x], T.nnet.softmax(x, axis=axis), mode=own)
    np.testing.assert_allclose(g(data), f(data), rtol=1e-14)
    assert "scipy.softmax" not in str(g.lowering_report())
