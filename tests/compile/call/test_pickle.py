"""Pickles and deep copies of variables, graphs and functions."""

import copy
import pickle
import sys

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.traverse import toposort

PROTOCOLS = pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])


def again(value, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


@PROTOCOLS
def test_inputs_constants_and_tags(protocol):
    x = T.matrix("x")
    x.tag.test_value = np.ones((2, 2), "float32")
    y = again(x, protocol)
    assert (y.name, y.type) == ("x", x.type)
    assert y.tag.test_value.sum() == 4
    c = again(T.constant(np.arange(3), name="c"), protocol)
    assert c.data.tolist() == [0, 1, 2]


@PROTOCOLS
def test_variables_pickled_together_stay_connected(protocol):
    x, y = T.dvectors("x", "y")
    z = T.exp(x) + y
    w = z * 2
    w.name = "twice"
    a, (c, d), b, z2 = again([x, (w, w + z), y, z], protocol)
    assert c.name == "twice"
    assert z2.owner in toposort([c])
    f = symdnn.function([a, b], [c, d])
    one, two = f([0.0], [1.0])
    assert (one.tolist(), two.tolist()) == ([4], [6])
    assert c.owner.inputs[0] is z2


def test_the_users_line_survives():
    x = T.dvector("x")
    y = again(T.exp(x))
    assert __file__ in str(y.owner.origin)


@PROTOCOLS
def test_a_deep_graph_needs_no_deep_recursion(protocol):
    x = T.dvector("x")
    y, z = x, x
    for _ in range(800):
        y, z = T.sin(y) + z, y
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        data = pickle.dumps([x, y], protocol)
        new = pickle.loads(data)
        copied = copy.deepcopy([x, y])
        fgraph = pickle.loads(pickle.dumps(FunctionGraph([x], [y]), protocol))
    finally:
        sys.setrecursionlimit(limit)
    assert len(toposort([new[1]])) == len(toposort([copied[1]])) == len(toposort([y]))
    assert len(fgraph) == 1600
    assert copied[0] in [v for n in toposort([copied[1]]) for v in n.inputs]


def test_many_outputs_pickle_in_linear_size():
    x = T.dvector("x")
    y, outputs = x, []
    for _ in range(300):
        y = T.sin(y)
        outputs.append(y)
    small = len(pickle.dumps(FunctionGraph([x], outputs[:100])))
    large = len(pickle.dumps(FunctionGraph([x], outputs)))
    assert large < 4 * small


def test_a_failed_pickle_leaves_nothing_behind():
    x = T.dvector("x")
    y = T.exp(x)
    y.tag.bad = lambda: None
    for _ in range(2):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(y)
    del y.tag.bad
    z = y
    for _ in range(2000):
        z = T.sin(z)
    assert len(toposort([again(z)])) == 2001


@PROTOCOLS
def test_shared_variables_with_default_updates(protocol):
    w = symdnn.shared(np.arange(3.0), "w", shape=(3,))
    w.default_update = w + 1
    v = again(w, protocol)
    assert v.type == w.type
    symdnn.function([], v)()
    assert v.get_value().tolist() == [1, 2, 3]
    assert w.get_value().tolist() == [0, 1, 2]


def test_clones_of_a_shared_variable_keep_one_storage():
    w = symdnn.shared(1.0)
    a, b = again((w, w.clone()))
    a.set_value(5.0)
    assert b.get_value() == 5


@PROTOCOLS
def test_a_function(protocol):
    w = symdnn.shared(np.ones(2), "w")
    x, lr = T.dvector("x"), T.dscalar("lr")
    f = symdnn.function(
        [x, In(lr, value=0.5)], {"cost": (x * w).sum(), "w": w}, updates=[(w, w - lr * x)], name="f"
    )
    f(np.ones(2))
    g, v = again((f, w), protocol)
    assert g.name == "f"
    assert g["lr"] == 0.5
    assert g([1, 1], lr=0)["cost"] == 1
    assert f([1, 1])["w"].tolist() == g([1, 1])["w"].tolist() == [0.5, 0.5]
    assert v.get_value().tolist() == [0, 0]
    v.set_value(np.full(2, 3.0))
    assert g(x=[1, 1])["cost"] == 6
    assert w.get_value().tolist() == [0, 0]


def test_a_trained_network_goes_on_where_it_was():
    rng = np.random.default_rng(0)
    x, t = T.dmatrix("x"), T.lvector("t")
    w = symdnn.shared(rng.standard_normal((4, 3)))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(x.dot(w)), t).mean()
    f = symdnn.function([x, t], loss, updates=[(w, w - 0.5 * T.grad(loss, w))])
    a, b = rng.standard_normal((8, 4)), rng.integers(0, 3, 8)
    f(a, b)
    g, h = again(f), copy.deepcopy(f)
    series = [[k(a, b).item() for _ in range(3)] for k in (f, g, h)]
    assert series[0] == series[1] == series[2]
    assert series[0][2] < series[0][0]
