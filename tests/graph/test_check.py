import pytest

import symdnn.tensor as T
from symdnn.errors import GraphError
from symdnn.graph.check import check_graph
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.traverse import toposort


@pytest.fixture
def fgraph():
    x = T.fvector("x")
    return FunctionGraph([x], [T.exp(T.log(x) + x), T.log(x) * 2])


def node_of(fgraph, name):
    (node,) = [n for n in fgraph.nodes if type(n.op).__name__ == name]
    return node


def test_a_sound_graph_passes(fgraph):
    check_graph(fgraph)


def test_a_cycle_is_named(fgraph):
    log, exp = node_of(fgraph, "Log"), node_of(fgraph, "Exp")
    fgraph.replace(fgraph.inputs[0], exp.outputs[0])  # the replacement of x is computed from x
    assert log.inputs == exp.outputs
    with pytest.raises(GraphError, match="the graph has a cycle: .*Exp -> .*"):
        check_graph(fgraph)


def test_a_walk_around_a_cycle_ends(fgraph):
    exp = node_of(fgraph, "Exp")
    fgraph.replace(fgraph.inputs[0], exp.outputs[0])
    with pytest.raises(GraphError, match=r"the graph has a cycle: (\w+ -> )*Exp( -> \w+)*$"):
        toposort(exp.outputs)


def test_wrong_clients_are_noticed(fgraph):
    log = node_of(fgraph, "Log")
    del fgraph.clients[fgraph.inputs[0]][log, 0]
    with pytest.raises(GraphError, match="input 0 does not list it as a client"):
        check_graph(fgraph)


def test_a_forgotten_node_is_noticed(fgraph):
    del fgraph.nodes[node_of(fgraph, "Exp")]
    with pytest.raises(GraphError, match="table of nodes"):
        check_graph(fgraph)


def test_a_forgotten_output_is_noticed(fgraph):
    del fgraph.clients[fgraph.outputs[0]][None, 0]
    with pytest.raises(GraphError, match="output 0 .* not registered"):
        check_graph(fgraph)
