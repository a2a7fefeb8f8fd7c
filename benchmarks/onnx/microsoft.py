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


def case(name, op, ins, nout=1, outputs=None, kept=99, **attrs):
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(ins)]
    outputs = outputs or [f"o{k}" for k in range(nout)]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attrs)
    ins = [None if a is None else np.asarray(a) for a in ins]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, ins)
        if a is not None
    ]
    g = helper.make_graph(
        [node], "g", infos, [helper.make_empty_tensor_value_info(o) for o in outputs if o]
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
    found.update({f"{name}/{o}": a for o, a in zip([o for o in outputs if o], r[:kept])})


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

# Masks, buffers, groups: what a node may ask of attention beside the plain case.


def i32(*v):
    return np.array(v, "int32")


ATT = [x, f(8, 24), f(24)]
case("att_ends_starts", "Attention", [*ATT, i32(4, 5, 1, 2)], num_heads=2)
case("att_mask3", "Attention", [*ATT, (rng.random((2, 5, 5)) < 0.7).astype("i4")], num_heads=2)
case("att_sizes", "Attention", [x, f(8, 28), f(28)], num_heads=2, qkv_hidden_sizes=[8, 8, 12])
case(
    "mha_buffer", "MultiHeadAttention",
    [f(2, 1, 8), f(2, 1, 8), f(2, 1, 8), *[None] * 3, f(2, 2, 9, 4), f(2, 2, 9, 4), i32(5)],
    nout=3, num_heads=2,
)  # fmt: skip
case(
    "mha_offsets", "MultiHeadAttention", [q, k, v, None, i32(4, 6, 0, 5, 10, 0, 6, 12)], num_heads=2
)


def grouped(name, new, past, total, lens, more=(), rotary=False, kept=1, **attrs):
    sizes = [(2, new, 64), (2, new, 32), (2, new, 32)]
    cache = [f(2, 2, past, 16), f(2, 2, past, 16)] if past is not None else [None, None]
    turns = [f(32, 8), f(32, 8)] if rotary else [None, None] if more else []
    case(
        name, "GroupQueryAttention",
        [*(f(*s) for s in sizes), *cache, i32(*lens), np.array(total, "int32"), *turns, *more],
        nout=3, kept=kept, num_heads=4, kv_num_heads=2, do_rotary=int(rotary), **attrs,
    )  # fmt: skip


grouped("gqa_lengths", 1, 6, 7, [4, 6])
grouped("gqa_buffer", 1, 12, 7, [4, 6], rotary=True)
grouped("gqa_prompt_buffer", 5, 12, 5, [4, 4], rotary=True, local_window_size=2)
grouped("gqa_window", 6, 0, 6, [5, 5], local_window_size=3, kept=3)
grouped("gqa_softcap", 1, 6, 7, [6, 6], softcap=2.0, scale=0.4)
grouped("gqa_smooth", 4, None, 4, [3, 3], smooth_softmax=1)
grouped("gqa_sink", 4, 0, 4, [3, 3], [None, None, f(4)])
grouped("gqa_bias", 1, 12, 7, [6, 6], [None, f(2, 4, 1, 7)])
grouped("gqa_places", 1, 6, 7, [6, 6], [np.array([[4], [6]], "int64")], rotary=True)
grouped("gqa_start", 3, 0, 3, [2, 2], [np.array([[3, 1, 2], [2, 3, 4]], "int64")], rotary=True)
grouped("gqa_both_ways", 4, 0, 4, [3, 3], causal=0)

# Few bits in blocks; codes of columns; channels last.
BLOCKS = [f(3, 64), u8(6, 2, 16), abs(f(6, 2))]
SHAPE = {"K": 64, "N": 6}
case(
    "nbits_float_zero", "MatMulNBits", [*BLOCKS, 15 * abs(f(6, 2))], bits=4, block_size=32, **SHAPE
)
case(
    "nbits_2", "MatMulNBits", [f(3, 64), u8(6, 2, 8), abs(f(6, 2)), u8(6, 1), None, f(6)],
    bits=2, block_size=32, **SHAPE,
)  # fmt: skip
case(
    "nbits_8", "MatMulNBits", [f(3, 64), u8(6, 2, 32), abs(f(6, 2))], bits=8, block_size=32, **SHAPE
)
case(
    "nbits_columns", "MatMulNBits", [*BLOCKS, None, (np.arange(64) // 32).astype("i4")],
    bits=4, block_size=32, **SHAPE,
)  # fmt: skip
for kind in (0, 1):
    case(
        f"bnb4_{kind}", "MatMulBnb4", [f(3, 64), u8(192), abs(f(12))],
        block_size=32, quant_type=kind, **SHAPE,
    )  # fmt: skip
TABLE = [u8(10, 32), np.array([[1, 3], [0, 9]], "int64"), abs(f(10, 4))]
case(
    "gather_blocks", "GatherBlockQuantized", [*TABLE, u8(10, 2)],
    gather_axis=0, quantize_axis=1, block_size=16, bits=4,
)  # fmt: skip
case(
    "gather_blocks_8", "GatherBlockQuantized", [TABLE[0], TABLE[1], abs(f(10, 2))],
    gather_axis=0, quantize_axis=1, block_size=16, bits=8,
)  # fmt: skip


def i7(*s):
    """Whole numbers whose sums of two products with bytes fit 16 bits, as some processors add."""
    return rng.integers(-63, 64, s).astype("int8")


COLUMNS = [abs(f(5)), np.zeros(5, "int8")]
case("dqmm_columns", "DynamicQuantizeMatMul", [f(3, 4), i7(4, 5), *COLUMNS, f(5)])
case(
    "mmi2f_columns", "MatMulIntegerToFloat",
    [u8(3, 4), i7(4, 5), np.float32(0.1), COLUMNS[0], np.uint8(3), COLUMNS[1]],
)  # fmt: skip
case(
    "qattention", "QAttention",
    [u8(2, 5, 8), i7(8, 24), f(24), *scaled(0.01, 0)[:1], 0.01 * abs(f(24)), None, np.uint8(128),
     np.zeros(24, "int8")],
    num_heads=2,
)  # fmt: skip
case(
    "qembed", "QEmbedLayerNormalization",
    [*(rng.integers(0, n, (2, 5)).astype("int32") for n in (9, 2)), u8(9, 8), u8(7, 8), u8(2, 8),
     u8(8), u8(8), None, *[np.float32(0.02)] * 5, *[np.uint8(128)] * 5],
    nout=2, epsilon=1e-5,
)  # fmt: skip
LAST = [u8(2, 6, 5, 3), *scaled(0.1, 120)]
case(
    "qavg_last", "QLinearAveragePool", [*LAST, *scaled(0.07, 110)],
    kernel_shape=[2, 3], strides=[2, 1], channels_last=1,
)  # fmt: skip
case("qglobal_last", "QLinearGlobalAveragePool", [*LAST, *scaled(0.02, 128)], channels_last=1)
case(
    "qconv_last", "QLinearConv",
    [*LAST, i7(4, 3, 3, 3), np.float32(0.02), np.int8(0), *scaled(0.9, 128)],
    channels_last=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1],
)  # fmt: skip
case("maxpool_last", "NhwcMaxPool", LAST[:1], kernel_shape=[2, 2], strides=[1, 2])
case("skipln_places", "SkipLayerNormalization", [x, f(1, 5, 8), f(8), f(8)],
     outputs=["o0", "", "", "o3"])  # fmt: skip

# Older names of ops of the default domain.
case("trilu", "Trilu", [x, np.array(1, "int64")], upper=0)
case("gathernd", "GatherND", [x, np.array([[0, 1], [1, 2]], "int64")])
case("expand", "ExpandDims", [x, i32(1)[0]])
case("inverse", "Inverse", [f(3, 4, 4)])
case("unique", "Unique", [np.float32([3, 1, 3, 2, 1, 7])], nout=3)
case("cdist", "CDist", [f(5, 3), f(4, 3)], metric="euclidean")
case("cdist_square", "CDist", [f(5, 3), f(4, 3)], metric="sqeuclidean")
case("pad", "Pad", [x, np.array([0, 1, 0, 0, 0, 2], "int64"), np.float32(2)])
case("range", "Range", [np.float32(0), np.float32(5), np.float32(2)])

# One token of a decoder; convolutions and grids; a norm with its second output.
TOKEN = [f(2, 1, 8), f(2, 1, 8), f(2, 1, 8)]
BUFFERS = [f(2, 2, 9, 4), f(2, 2, 9, 4), i32(5)]
DECODER = "DecoderMaskedMultiHeadAttention"
case("decoder", DECODER, [*TOKEN, np.ones((2, 6), "i4"), None, *BUFFERS], nout=3, num_heads=2,
     past_present_share_buffer=1)  # fmt: skip
case("decoder_bias", DECODER, [*TOKEN, None, f(1, 2, 1, 6), *BUFFERS, None, None, f(24)], nout=3,
     num_heads=2, past_present_share_buffer=1, scale=0.4)  # fmt: skip
case("decoder_cross", DECODER, [TOKEN[0], f(2, 2, 6, 4), f(2, 2, 6, 4)], num_heads=2)
case(
    "transposed_pads", "ConvTransposeWithDynamicPads",
    [f(1, 3, 5, 5), f(3, 4, 3, 3), np.array([1, 0, 1, 2], "int64"), f(4)],
    kernel_shape=[3, 3], strides=[2, 2],
)  # fmt: skip
case(
    "grid", "GridSample", [f(1, 2, 5, 6), f(1, 4, 3, 2) / 2],
    mode="bilinear", padding_mode="border", align_corners=1,
)  # fmt: skip

# Experts: one, two of four with equal sums, gates beside lines.
ROWS = [f(3, 2, 8), 3 * f(6, 4)]
LAYERS = [f(4, 6, 8), f(4, 6), f(4, 8, 6), f(4, 8)]
case("experts", "MoE", [*ROWS, *LAYERS])
case("experts_two", "MoE", [*ROWS, *LAYERS], k=2, activation_type="gelu",
     normalize_routing_weights=1)  # fmt: skip
case("experts_silu", "MoE", [ROWS[0].reshape(6, 8), ROWS[1], LAYERS[0], None, LAYERS[2]], k=3,
     activation_type="silu")  # fmt: skip
case(
    "experts_gated", "MoE", [*ROWS, f(4, 12, 8), f(4, 12), *LAYERS[2:]],
    k=2, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.7, activation_beta=1.0,
    swiglu_limit=0.8,
)  # fmt: skip

np.savez_compressed(sys.argv[1], **found)
