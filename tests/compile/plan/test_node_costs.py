"""Estimates of time count what an op multiplies, whatever its class is called."""

from dataclasses import dataclass

import pytest

import symdnn.tensor as T
from symdnn.compile.plan.loop_choice import seconds_of_nodes
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call
from symdnn.graph.place import HOST, Place
from symdnn.graph.type import OpaqueType, TensorType, elements
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.vendor.gpublas import GpuGemm
from symdnn.ops.vendor.onednn import OneDnnMatmul


@dataclass(frozen=True)
class OfAnotherName(Dot):
    """A product that no list of names has."""


def f(*shape):
    return TensorType("float32", shape)


CONV = Conv(((0, 0), (0, 0)), (1, 1), (1, 1))
IMAGES, FILTERS, MADE = f(2, 6, 9, 9), f(4, 6, 3, 3), f(2, 4, 7, 7)
OF_CONV = 2 * 4 * 7 * 7 * 6 * 3 * 3
LSTM = ("lstm", 8, 1)
STEPS = [f(1000), f(5, 3, 7), f(1, 3, 8), f(1, 3, 8)]
HEADS = [f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8)]


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        (Dot(), [f(3, 5), f(5, 7)], [f(3, 7)], 105),
        (Dot(), [f(5), f(5, 7)], [f(7)], 35),
        (Dot(), [f(5), f(5)], [f()], 5),
        (Dot(), [f(3, 0), f(0, 7)], [f(3, 7)], 0),
        (OfAnotherName(), [f(3, 5), f(5, 7)], [f(3, 7)], 105),
        (BatchedDot(), [f(4, 3, 5), f(4, 5, 7)], [f(4, 3, 7)], 420),
        (BatchedDot(), [f(1, 3, 5), f(4, 5, 7)], [f(4, 3, 7)], 420),
        (QuantizedProduct(Dot()), [f(3, 5), f(5, 7)], [f(3, 7)], 105),
        (CONV, [IMAGES, FILTERS], [MADE], OF_CONV),
        (ConvGradInput(*CONV.settings), [FILTERS, MADE], [IMAGES], OF_CONV),
        (ConvGradWeight(*CONV.settings), [IMAGES, MADE], [FILTERS], OF_CONV),
        (RNNForward(*LSTM), STEPS, [f(5, 3, 8)], 1000 * 5 * 3),
        (RNNGrad(*LSTM), STEPS, [f(1000)], 2 * 1000 * 5 * 3),
        (Attention(Scores()), HEADS, HEADS[:1], 2 * 2 * 3 * 5 * 8 * 7),
        (AttentionGrad(Scores()), HEADS, HEADS, 5 * 2 * 3 * 5 * 8 * 7),
        (Add(), [f(3, 5), f(3, 5)], [f(3, 5)], 0),
    ],
    ids=lambda v: type(v).__name__ if hasattr(v, "infer") else "",
)
def test_multiply_adds(op, inputs, outputs, expected):
    assert op.multiplications(inputs, outputs) == expected


@pytest.mark.parametrize("place", [HOST, Place("cuda", 0)], ids=["host", "device"])
@pytest.mark.parametrize("lowered", [GpuGemm(), OneDnnMatmul(Dot())], ids=["gpu", "cpu"])
def test_a_library_s_op_takes_as_long_as_the_op_it_stands_for(lowered, place):
    inputs, outputs = [f(4096, 4096)] * 2, [f(4096, 4096)]
    wanted = seconds_of(Call(Dot(), inputs, outputs, {}), place)
    assert seconds_of(Call(lowered, inputs, outputs, {}), place) == wanted
    assert wanted > 10 * seconds_of(Call(Add(), inputs, outputs, {}), place)


def test_a_layout_changes_no_number_of_multiply_adds():
    def last(t):
        n, c, *sizes = t.shape
        return t.with_shape((n, *sizes, c))

    given = [last(IMAGES), last(FILTERS)]
    assert CONV.multiplications(given, [last(MADE)]) == OF_CONV


def test_elementwise_ops_of_a_step_are_one_kernel_and_all_others_count():
    x = T.dmatrix("x")

    def seconds(y):
        fgraph = FunctionGraph([x], [y])
        shapes = {v: (64, 64) for v in (*fgraph.inputs, *(n.outputs[0] for n in fgraph.nodes))}
        return seconds_of_nodes(fgraph.nodes, shapes, HOST)

    one = seconds(T.exp(x))
    assert seconds(T.exp(T.tanh(x).T)) == one
    for other in (T.sort, T.nnet.softmax, T.cumsum):
        assert seconds(other(T.exp(x), 1)) > 1.9 * one
        assert seconds(other(other(x, 1), 1)) > 1.9 * one


def test_elements_of_a_type():
    assert elements(f(3, 5)) == 15
    assert elements(f(3, None)) == 3
    assert elements(f(3, 0)) == 0
    assert elements(OpaqueType("reserve")) == 0
