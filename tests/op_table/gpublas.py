from __future__ import annotations

import numpy as np

from symdnn.ops.linalg.dot import BatchedDot
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBiasGrad
from tests.op_table.record import OpCase, ending, normal


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


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
    OpCase("gemm_bias_grad_update", (GpuGemmBiasGrad,),
           ending(GpuGemmBiasGrad(), alpha=-0.5, residual=1.0),
           (normal(3, 4), normal(4, 5), normal(3, 5)),
           lambda x, y, c: (c - 0.5 * (x @ y), y.sum(0)), grad=False),
]  # fmt: skip
