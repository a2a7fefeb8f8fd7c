"""GEMMs in training that also store their result before the activation function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.evaluate import evaluate
from symdnn.ops.vendor.gpublas import GpuGemmKept
from tests.libraries.cublaslt.test_joined import CUDA, drawn, ops_of

registry.load()


def tanh_gelu(v: Any) -> Any:
    return T.nnet.gelu(v, approximate="tanh")


def step(shape: tuple[Any, ...], activation: Any, bias: bool = True) -> tuple[Any, list[Any]]:
    """The input of two layers, and their loss with its gradients."""
    nn.init.seed(3)
    first, second = nn.Linear(16, 32, bias), nn.Linear(32, 8, bias)
    x = T.TensorType("float32", shape)("x")
    loss = T.sqr(second(activation(first(x)))).mean()
    return x, [loss, *grad(loss, [*first.parameters(), *second.parameters()])]


@pytest.mark.parametrize("activation", [T.nnet.gelu, tanh_gelu])
@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 16), (None, None, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_of_training(activation, shape, bias):
    x, outputs = step(shape, activation, bias)
    with config.change_flags(amp="bf16"):
        f = symdnn.function([x], outputs, mode=CUDA)
    (op,) = ops_of(f, GpuGemmKept)
    assert op.bias == bias
    assert op.activation == ("gelu_erf" if activation is T.nnet.gelu else "gelu")
    value = drawn(*(n or 3 for n in shape))
    wanted = evaluate(outputs, {x: value})
    got = evaluate(f.fgraph.outputs, {f.fgraph.inputs[0]: value})
    for a, b in zip(got, wanted, strict=True):
        scale = np.abs(b).max() + 1e-3
        assert np.abs(np.asarray(a, "f4") - b).max() <= 3e-2 * scale


def test_left_alone():
    x, outputs = step((6, 16), T.nnet.relu)
    for amp in ("off", "bf16"):
        with config.change_flags(amp=amp):
            assert ops_of(symdnn.function([x], outputs, mode=CUDA), GpuGemmKept) == []
    x, outputs = step((6, 16), T.nnet.gelu)
    assert ops_of(symdnn.function([x], outputs, mode=CUDA), GpuGemmKept) == []  # in float32
    with config.change_flags(amp="bf16"):
        excluded = symdnn.function([x], outputs, mode=CUDA.excluding("gemm_and_activation"))
        alone = symdnn.function([x], outputs[:1], mode=CUDA)
    assert ops_of(excluded, GpuGemmKept) == []
    assert ops_of(alone, GpuGemmKept) == []  # nothing else reads the value before the activation


def test_what_a_norm_reads_is_computed_by_it():
    nn.init.seed(3)
    first, norm = nn.Linear(16, 32), nn.LayerNorm(32)
    x = T.TensorType("float32", (6, 16))("x")
    loss = T.sqr(norm(T.nnet.gelu(first(x)))).mean()
    with config.change_flags(amp="bf16"):
        f = symdnn.function([x], [loss, *grad(loss, first.parameters())], mode=CUDA)
    assert ops_of(f, GpuGemmKept) == []
