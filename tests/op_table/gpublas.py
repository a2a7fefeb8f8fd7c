from __future__ import annotations

import ml_dtypes
import numpy as np
from scipy import special

from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.vendor.gpublas import (
    GpuGemm,
    GpuGemmBiasGrad,
    GpuGemmKept,
    GpuQuantizedGemm,
)
from tests.op_table.record import OpCase, ending, integers, normal, uniform


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def int8_rows(*shape):
    return integers(-128, 128, *shape, dtype="int8")


def float8_rows(*shape):
    return integers(0, 120, *shape, dtype="uint8")


def float8_product(x, y, a, b):
    """Tensor cores keep some 13 bits of a sum of products of float8."""
    x, y = (v.view(ml_dtypes.float8_e4m3fn).astype("float32") for v in (x, y))
    return x @ y.T * (a * b)


FLOAT8 = QuantizedProduct(
    Dot(), ("x_scale", "w_scale"), "float32", kinds=("float8_e4m3fn", "float8_e4m3fn")
)


def half(*shape):
    return normal(*shape, dtype="float16")


CASES = [
    OpCase("gemm_alpha_beta", (GpuGemm,), ending(GpuGemm(), alpha=0.5, residual=-2.0),
           (normal(3, 4), normal(4, 5), normal(3, 5)),
           lambda x, y, c: 0.5 * (x @ y) - 2 * c, grad=False),
    OpCase("gemm_vector", (GpuGemm,), ending(GpuGemm(), residual=1.0),
           (normal(3, 4), normal(4), normal(3)), lambda x, y, c: x @ y + c, grad=False),
    OpCase("gemm_bias_relu", (GpuGemm,), ending(GpuGemm(), bias=True, activation="relu"),
           (normal(3, 4), normal(4, 5), normal(1, 5)),
           lambda x, y, b: np.maximum(x @ y + b, 0), grad=False),
    OpCase("gemm_gelu_erf", (GpuGemm,), ending(GpuGemm(), bias=True, activation="gelu_erf"),
           (normal(3, 4), normal(4, 5), normal(1, 5)),
           lambda x, y, b: (x @ y + b) * special.ndtr(x @ y + b), grad=False),
    OpCase("gemm_silu", (GpuGemm,), ending(GpuGemm(), activation="silu"),
           (normal(3, 4), normal(4, 5)), lambda x, y: (x @ y) * special.expit(x @ y), grad=False),
    OpCase("gemm_kept", (GpuGemmKept,), ending(GpuGemmKept(), bias=True, activation="gelu"),
           (normal(3, 4), normal(4, 5), normal(1, 5)),
           lambda x, y, b: (gelu(x @ y + b), x @ y + b), grad=False),
    OpCase("gemm_kept_half", (GpuGemmKept,),
           GpuGemmKept().ending("float16", activation="gelu_erf"), (half(3, 4), half(4, 5)),
           lambda x, y: ((x @ y) * special.ndtr((x @ y).astype("f4")), x @ y), grad=False,
           rtol=4e-3),
    OpCase("gemm_everything", (GpuGemm,),
           ending(GpuGemm(), alpha=2.0, residual=-1.0, bias=True, activation="gelu"),
           (normal(3, 4), normal(4, 5), normal(3, 5), normal(1, 5)),
           lambda x, y, c, b: gelu(2 * (x @ y) - c + b), grad=False),
    OpCase("gemm_stack", (GpuGemm,), ending(GpuGemm(BatchedDot()), residual=1.0, bias=True),
           (normal(2, 3, 4), normal(2, 4, 5), normal(2, 3, 5), normal(1, 1, 5)),
           lambda x, y, c, b: x @ y + c + b, grad=False),
    OpCase("gemm_widened", (GpuGemm,), GpuGemm().ending("float32", factors="float16", bias=True),
           (half(3, 4), half(4, 5), normal(1, 5, dtype="float32")),
           lambda x, y, b: x.astype("float32") @ y.astype("float32") + b, grad=False, rtol=1e-5),
    OpCase("gemm_bias_grad", (GpuGemmBiasGrad,), GpuGemmBiasGrad(),
           (normal(3, 4), normal(4, 5)), lambda x, y: (x @ y, y.sum(0)), grad=False),
    OpCase("gemm_bias_grad_left", (GpuGemmBiasGrad,), GpuGemmBiasGrad(left=True),
           (normal(3, 4), normal(4, 5)), lambda x, y: (x @ y, x.sum(1)), grad=False),
    OpCase("gemm_bias_grad_widened", (GpuGemmBiasGrad,),
           GpuGemmBiasGrad(left=True).ending("float32", factors="float16"),
           (half(3, 4), half(4, 5)),
           lambda x, y: (x.astype("float32") @ y.astype("float32"), x.astype("float32").sum(1)),
           grad=False, rtol=1e-5),
    OpCase("gemm_bias_grad_update", (GpuGemmBiasGrad,),
           ending(GpuGemmBiasGrad(), alpha=-0.5, residual=1.0),
           (normal(3, 4), normal(4, 5), normal(3, 5)),
           lambda x, y, c: (c - 0.5 * (x @ y), y.sum(0)), grad=False),
    OpCase("gemm_int8", (GpuQuantizedGemm,), GpuQuantizedGemm(QuantizedProduct(Dot())),
           (int8_rows(5, 32), int8_rows(16, 32)),
           lambda x, y: x.astype("int32") @ y.T.astype("int32"), grad=False),
    OpCase("gemm_int8_stack", (GpuQuantizedGemm,),
           GpuQuantizedGemm(QuantizedProduct(BatchedDot())),
           (int8_rows(3, 16, 16), int8_rows(3, 32, 16)),
           lambda x, y: x.astype("int32") @ y.swapaxes(1, 2).astype("int32"), grad=False),
    OpCase("gemm_float8", (GpuQuantizedGemm,), GpuQuantizedGemm(FLOAT8),
           (float8_rows(16, 32), float8_rows(16, 32), uniform(0.1, 1, dtype="float32"),
            uniform(0.1, 1, dtype="float32")), float8_product, grad=False, rtol=1e-3),
]  # fmt: skip
