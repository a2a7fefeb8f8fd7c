"""What was made of a graph goes with it: no table of the package keeps variables or functions."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn, printing
from symdnn.compile.call.compiled_function import Function
from symdnn.graph.fgraph import FunctionGraph

ONES = np.ones((3, 3), "float32")


def compiled(y, x, **options):
    f = symdnn.function([x], y, **options)
    f(ONES)
    return f


def in_debug_mode(y, x):
    return compiled(y, x, mode="DebugMode")


def with_test_values(y, x):
    x.tag.test_value = ONES
    with symdnn.config.change_flags(compute_test_value="raise"):
        return T.exp(x) * x.shape[0]


def scanned(y, x):
    steps = symdnn.scan(lambda row, s: T.tanh(row + s), sequences=y, outputs_info=x[0])[0]
    return compiled(T.grad(steps.sum(), x), x)


def fails(y, x):
    with pytest.raises(symdnn.errors.SymdnnError):
        compiled(y + T.constant(np.ones((2, 2), "float32")), x)


USES = {
    "eval": lambda y, x: y.eval({x: ONES}),
    "eval twice": lambda y, x: (y.eval({x: ONES}), y.eval({x: ONES})),
    "eval of a constant": lambda y, x: T.exp(T.constant(ONES)).eval(),
    "function": compiled,
    "profile": lambda y, x: compiled(y, x, profile=True).lowering_report(),
    "gradients": lambda y, x: compiled(T.grad(y.sum(), x), x),
    "jacobian": lambda y, x: compiled(symdnn.jacobian(y[0], x), x),
    "DebugMode": in_debug_mode,
    "test values": with_test_values,
    "scan": scanned,
    "ifelse": lambda y, x: compiled(symdnn.ifelse(x.sum() > 0, y, x), x),
    "clone": lambda y, x: symdnn.clone(y, replace={x: x * 2}),
    "copy": lambda y, x: (copy.deepcopy(y), copy.copy(compiled(y, x))),
    "pickle": lambda y, x: pickle.loads(pickle.dumps(compiled(y, x)))(ONES),
    "printing": lambda y, x: (printing.pp(y), printing.debugprint(y, file="str"), y._repr_html_()),
    "picture": lambda y, x: printing.pydotprint(compiled(y, x), return_image=True),
    "shared": lambda y, x: compiled(y * nn.Linear(3, 3)(x), x),
    "error": fails,
}


def functions_and_graphs():
    """How many there are. By their type: isinstance asks foreign objects for their __class__."""
    return sum(issubclass(type(o), Function | FunctionGraph) for o in gc.get_objects())


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("use", USES)
def test_nothing_stays_of_a_graph(use):
    def made():
        x = T.fmatrix("x")
        y = T.tanh(x * 2)
        USES[use](y, x)
        return weakref.ref(x), weakref.ref(y)

    gc.collect()
    before = functions_and_graphs()
    alive = made()
    gc.collect()
    gc.collect()  # a GPU's plan lets go of its nodes when it is collected itself
    assert [r() for r in alive] == [None, None]
    assert functions_and_graphs() <= before
