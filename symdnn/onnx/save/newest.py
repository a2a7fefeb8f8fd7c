"""The newest opset that the installed ONNX Runtime runs, found by trying."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import onnx
from onnx import helper, parser

#: What is written without ONNX Runtime: all of its versions since 1.20 run it.
WITHOUT_RUNTIME = 21
#: The oldest opset that can be written.
OLDEST_OPSET = 18

_ELEMENTWISE = [
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Identity", "Round",
    "Sin", "Sinh", "Softplus", "Tan",
]  # fmt: skip
#: Other ops, with attributes and inputs that all opsets since 18 have.
_TRIAL = """
trial (float[2,2] x, float[1,1,4,4] image, float[2,1,1] steps, float[1,1,1] w1, float[1,3,1] w3,
       float[1,4,1] w4, float scale, float[2] pair, uint8 q, uint64[3] u, int64[4] i, int64[1] one,
       int64[2] two, int64 n, bool yes) => ()
{
    pool = AveragePool <kernel_shape = [2, 2]> (image)
    most = MaxPool <kernel_shape = [2, 2]> (image)
    conv = Conv (image, image)
    turned = ConvTranspose (image, image)
    shifted = BitShift <direction = "LEFT"> (u, u)
    cast = Cast <to = 7> (x)
    det = Det (x)
    codes = QuantizeLinear (x, scale, q)
    values = DequantizeLinear (q, scale)
    rest = Mod (i, i)
    classes = OneHot (i, n, pair)
    padded = Pad (x, i)
    range = Range (n, n, n)
    sums = ReduceLogSumExp (x)
    reshaped = Reshape (x, two)
    shape = Shape (x)
    size = Size (x)
    squeezed = Squeeze (image, one)
    unsqueezed = Unsqueeze (x, one)
    transposed = Transpose (x)
    top, places = TopK (x, one)
    unique = Unique (i)
    rnn = RNN <hidden_size = 1> (steps, w1, w1)
    gru = GRU <hidden_size = 1, linear_before_reset = 1> (steps, w3, w3)
    lstm = LSTM <hidden_size = 1> (steps, w4, w4)
    chosen = If (yes) <
        then_branch = yes_body () => (float[2,2] a) { a = Identity (x) },
        else_branch = no_body () => (float[2,2] b) { b = Identity (x) }>
    looped = Loop (n, yes, x) <
        body = step (int64 k, bool go, float[2,2] c) => (bool on, float[2,2] d)
            { on = Identity (go) d = Identity (c) }>
    scanned = Scan (x) <num_scan_inputs = 1,
        body = each (float[2] row) => (float[2] kept) { kept = Identity (row) }>
}
"""


def trial(opset: int) -> Any:
    """A model of the ops that ``save`` writes and whose definition changed after opset 21.

    A runtime may take a new opset before it has all of its ops.
    """
    graph = parser.parse_graph(_TRIAL)
    graph.node.extend(helper.make_node(op, ["x"], [op.lower()]) for op in _ELEMENTWISE)
    for node in graph.node:
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets)
    )


@cache
def default_opset() -> int:
    """The newest opset whose :func:`trial` ONNX Runtime takes; 21 where it is not installed."""
    newest = onnx.defs.onnx_opset_version()
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return min(WITHOUT_RUNTIME, newest)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # an opset that it does not take is no news
    for opset in range(newest, OLDEST_OPSET, -1):
        try:
            runtime.InferenceSession(
                trial(opset).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception:  # its errors have no class in common
            continue
        return opset
    return OLDEST_OPSET
