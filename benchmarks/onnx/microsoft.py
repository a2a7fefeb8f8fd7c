"""Writes tests/onnx/data/microsoft.npz: ops of com.microsoft as ONNX Runtime computes them.

python benchmarks/onnx/microsoft.py FILE.npz, where numpy, onnx and onnxruntime are installed.
"""

import sys

import numpy as np
import onnxruntime as ort
from onnx import helper

ort.set_default_logger_severity(4)
rng = np.random.default_rng(0)
found = {}


def f(*s):
    return rng.normal(size=s).astype("float32")


def u8(*s):
    return rng.integers(0, 256, s).astype("uint8")


def case(name, op, ins, nout=1, **attrs):
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(ins)]
    node = helper.make_node(
        op, names, [f"o{k}" for k in range(nout)], domain="com.microsoft", **attrs
    )
    ins = [None if a is None else np.asarray(a) for a in ins]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, ins)
        if a is not None
    ]
    g = helper.make_graph(
        [node], "g", infos, [helper.make_empty_tensor_value_info(f"o{k}") for k in range(nout)]
    )
    m = helper.make_model(
        g,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    s = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    r = s.run(None, {n: a for n, a in zip(names, ins) if a is not None})
    found[name + "/model"] = np.frombuffer(m.SerializeToString(), "uint8")
    found.update({f"{name}/i{k}": a for k, a in enumerate(ins) if a is not None})
    found.update({f"{name}/o{k}": a for k, a in enumerate(r)})


x = f(2, 5, 8)
case("gelu", "Gelu", [x])
case("fastgelu", "FastGelu", [x, f(8)])
case("biasgelu", "BiasGelu", [x, f(8)])
case("quickgelu", "QuickGelu", [x], alpha=1.5)
case("fusedmm", "FusedMatMul", [f(2, 4, 3), f(2, 4, 5)], transA=1, alpha=0.5)
case("fusedmmb", "FusedMatMul", [f(2, 3, 4), f(2, 5, 4)], transB=1)
case(
    "fusedgemm", "FusedGemm", [f(3, 4), f(4, 5), f(5)], activation="LeakyRelu", activation_alpha=0.3
)
case(
    "fusedconv",
    "FusedConv",
    [f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)],
    activation="Relu",
    pads=[1, 1, 1, 1],
)
case(
    "fusedconvz",
    "FusedConv",
    [f(1, 3, 6, 6), f(4, 3, 3, 3), f(4), f(1, 4, 6, 6)],
    activation="Relu",
    pads=[1, 1, 1, 1],
)
case("skipln", "SkipLayerNormalization", [x, f(2, 5, 8), f(8), f(8), f(8)], nout=4, epsilon=1e-5)
case("skiprms", "SkipSimplifiedLayerNormalization", [x, f(2, 5, 8), f(8)], epsilon=1e-5)
case(
    "embed",
    "EmbedLayerNormalization",
    [
        rng.integers(0, 9, (2, 5)).astype("int32"),
        rng.integers(0, 2, (2, 5)).astype("int32"),
        f(9, 8),
        f(7, 8),
        f(2, 8),
        f(8),
        f(8),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"),
    ],
    nout=2,
    epsilon=1e-5,
)
case("att", "Attention", [x, f(8, 24), f(24)], num_heads=2)
case(
    "att_mask2",
    "Attention",
    [x, f(8, 24), f(24), np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")],
    num_heads=2,
)
case("att_mask1", "Attention", [x, f(8, 24), f(24), np.array([3, 5], "int32")], num_heads=2)
case("att_uni", "Attention", [x, f(8, 24), f(24)], num_heads=2, unidirectional=1)
case(
    "att_past",
    "Attention",
    [x, f(8, 24), f(24), None, f(2, 2, 2, 3, 4)],
    nout=2,
    num_heads=2,
    unidirectional=1,
)
case("att_bias", "Attention", [x, f(8, 24), f(24), None, None, f(2, 2, 5, 5)], num_heads=2)
q, k, v = f(2, 5, 8), f(2, 6, 8), f(2, 6, 8)
case("mha", "MultiHeadAttention", [q, k, v], num_heads=2)
case("mha_bias", "MultiHeadAttention", [q, k, v, f(24)], num_heads=2)
case(
    "mha_mask",
    "MultiHeadAttention",
    [q, k, v, None, np.array([[1, 1, 1, 1, 0, 0], [1] * 6], "int32")],
    num_heads=2,
)
case("mha_attbias", "MultiHeadAttention", [q, k, v, None, None, f(2, 2, 5, 6)], num_heads=2)
case(
    "mha_past",
    "MultiHeadAttention",
    [q, f(2, 5, 8), f(2, 5, 8), None, None, None, f(2, 2, 3, 4), f(2, 2, 3, 4)],
    nout=3,
    num_heads=2,
)
case("mha_uni", "MultiHeadAttention", [q, f(2, 5, 8), f(2, 5, 8)], num_heads=2, unidirectional=1)
S = 4
case(
    "gqa",
    "GroupQueryAttention",
    [
        f(2, S, 32),
        f(2, S, 16),
        f(2, S, 16),
        None,
        None,
        np.array([S - 1, S - 1], "int32"),
        np.array(S, "int32"),
    ],
    nout=3,
    num_heads=4,
    kv_num_heads=2,
)
case(
    "gqa_past",
    "GroupQueryAttention",
    [
        f(2, 1, 32),
        f(2, 1, 16),
        f(2, 1, 16),
        f(2, 2, 6, 8),
        f(2, 2, 6, 8),
        np.array([6, 6], "int32"),
        np.array(7, "int32"),
    ],
    nout=3,
    num_heads=4,
    kv_num_heads=2,
)
case(
    "gqa_rot",
    "GroupQueryAttention",
    [
        f(1, S, 64),
        f(1, S, 32),
        f(1, S, 32),
        None,
        None,
        np.array([S - 1], "int32"),
        np.array(S, "int32"),
        f(10, 8),
        f(10, 8),
    ],
    nout=3,
    num_heads=4,
    kv_num_heads=2,
    do_rotary=1,
)
case(
    "rot",
    "RotaryEmbedding",
    [f(2, 3, 16), np.array([[0, 1, 2], [3, 4, 5]], "int64"), f(8, 4), f(8, 4)],
)
case(
    "rot_i",
    "RotaryEmbedding",
    [f(2, 3, 16), np.array([2], "int64"), f(8, 4), f(8, 4)],
    interleaved=1,
)
case(
    "rot4",
    "RotaryEmbedding",
    [f(2, 2, 3, 8), np.array([[0, 1, 2], [3, 4, 5]], "int64"), f(8, 4), f(8, 4)],
)
case(
    "mmi2f",
    "MatMulIntegerToFloat",
    [u8(3, 4), u8(4, 5), np.float32(0.1), np.float32(0.2), np.uint8(3), np.uint8(120), f(5)],
)
case("dqmm", "DynamicQuantizeMatMul", [f(3, 4), u8(4, 5), np.float32(0.2), np.uint8(120), f(5)])
case(
    "qadd",
    "QLinearAdd",
    [
        u8(3, 4),
        np.float32(0.1),
        np.uint8(3),
        u8(3, 4),
        np.float32(0.2),
        np.uint8(5),
        np.float32(0.3),
        np.uint8(100),
    ],
)
case(
    "qmul",
    "QLinearMul",
    [
        u8(3, 4),
        np.float32(0.1),
        np.uint8(3),
        u8(3, 4),
        np.float32(0.2),
        np.uint8(5),
        np.float32(3),
        np.uint8(100),
    ],
)
case(
    "nbits",
    "MatMulNBits",
    [
        f(3, 40),
        u8(6, 3, 8),
        f(6 * 3),
    ],
    K=40,
    N=6,
    bits=4,
    block_size=16,
)
case(
    "nbitsz",
    "MatMulNBits",
    [f(3, 32), u8(6, 2, 8), f(6 * 2), u8(6 * 1)],
    K=32,
    N=6,
    bits=4,
    block_size=16,
)


def scaled(scale, zero):
    return [np.float32(scale), np.uint8(zero)]


IMAGES = [u8(2, 3, 6, 5), *scaled(0.1, 120)]
ROWS = [u8(2, 3, 4), *scaled(0.05, 100)]
case(
    "qavg", "QLinearAveragePool", [*IMAGES, *scaled(0.07, 110)],
    kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1],
)  # fmt: skip
case("qglobal", "QLinearGlobalAveragePool", [*IMAGES, *scaled(0.02, 128)], channels_last=0)
case("qleaky", "QLinearLeakyRelu", [*ROWS, *scaled(0.06, 90)], alpha=0.2)
case("qsigmoid", "QLinearSigmoid", [*ROWS, *scaled(1 / 256, 0)])
case("qsoftmax", "QLinearSoftmax", [*ROWS, *scaled(1 / 256, 0)], axis=2, opset=13)
case("qsoftmax_old", "QLinearSoftmax", [*ROWS, *scaled(1 / 256, 0)], axis=1, opset=11)
case("qconcat", "QLinearConcat", [*scaled(0.08, 101), *ROWS, *ROWS[:1], *scaled(0.09, 3)], axis=1)
case(
    "qwhere", "QLinearWhere",
    [rng.random((2, 3, 4)) > 0.5, *ROWS, u8(3, 4), *scaled(0.09, 3), *scaled(0.08, 101)],
)  # fmt: skip
GEMM = [u8(3, 4), *scaled(0.1, 3), u8(5, 4), *scaled(0.05, 120), rng.integers(-900, 900, 5, "i4")]
case("qgemm", "QGemm", [*GEMM, *scaled(0.4, 128)], transB=1, alpha=1.0)
case("qgemm_real", "QGemm", GEMM[:6], transB=1)

np.savez_compressed(sys.argv[1], **found)
