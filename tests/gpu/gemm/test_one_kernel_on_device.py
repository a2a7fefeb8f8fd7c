"""Products with activations, layer scales, padding and rolls on a device: numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.gpu.gemm import one_kernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.gathered import ListedSums
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmKept

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

#: Largest error beside the largest value.
CLOSE = 4e-2
ACTIVATIONS: dict[str, Any] = {
    "gelu_erf": T.nnet.gelu, "silu": T.nnet.silu,
    "gelu": lambda v: T.nnet.gelu(v, approximate="tanh"),
}  # fmt: skip


def agree(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a).astype("f8"), np.asarray(b).astype("f8")
        assert np.abs(a - b).max() <= CLOSE * (np.abs(b).max() + 1e-3)


def ops_of(f: Any, *kinds: Any) -> list[Any]:
    return [n.op for n in f.fgraph.toposort() if isinstance(n.op, kinds)]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("algo", ["guess", "time"])
def test_inference(rng: Any, name: str, algo: str) -> None:
    """A block as in ConvNeXt: its layer scale is in the weights, its residual in the product."""
    nn.init.seed(3)
    first, second = nn.Linear(96, 384), nn.Linear(384, 96)
    gamma = symdnn.shared(rng.uniform(0.1, 1, 96).astype("float32"), "gamma", shape=(96,))
    x = T.TensorType("float32", (4, 14, 14, 96))("x")
    wanted = x + second(ACTIVATIONS[name](first(x))) * gamma
    with config.change_flags(device="cpu"):
        plain = symdnn.function([x], wanted)
    with config.change_flags(device="cuda", amp="bf16", **{"gpu.gemm.algo": algo}):
        f = symdnn.function([x], wanted)
    assert any(op.activation == name for op in ops_of(f, GpuGemm))
    value = rng.standard_normal((4, 14, 14, 96)).astype("float32")
    for _ in range(3):
        agree([f(value)], [plain(value)])
    gamma.set_value(gamma.get_value() * 2)
    agree([f(value)], [plain(value)])


@pytest.mark.parametrize("name", ["gelu_erf", "gelu"])
@pytest.mark.parametrize("algo", ["guess", "time"])
def test_training(rng: Any, name: str, algo: str) -> None:
    nn.init.seed(3)
    first, second = nn.Linear(64, 256), nn.Linear(256, 64)
    x = T.TensorType("float32", (8, 32, 64))("x")
    loss = T.sqr(second(ACTIVATIONS[name](first(x)))).mean()
    outputs = [loss, *grad(loss, [*first.parameters(), *second.parameters()])]
    with config.change_flags(device="cpu"):
        plain = symdnn.function([x], outputs)
    with config.change_flags(device="cuda", amp="bf16", **{"gpu.gemm.algo": algo}):
        f = symdnn.function([x], outputs)
    assert len(ops_of(f, GpuGemmKept)) == 1
    value = rng.standard_normal((8, 32, 64)).astype("float32")
    for _ in range(3):
        agree(f(value), plain(value))


def test_a_bias_that_is_made_just_before_is_read_when_it_is_there(
    rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN launches its kernel so that it may begin before the one that makes the bias ends."""
    measured = one_kernel._Question.measured

    def by_cudnn(question: Any) -> Any:
        found, problem = measured(question)
        return [a for a in found if a.candidate is not None] or found, problem

    monkeypatch.setattr(one_kernel._Question, "measured", by_cudnn)
    one_kernel.forget()
    nn.init.seed(3)
    first, second = nn.Linear(768, 3072), nn.Linear(3072, 768)
    x, b = T.TensorType("float32", (8, 1024, 768))("x"), T.TensorType("float32", (3072,))("b")
    h = nn.functional.layer_norm(x, (768,))
    inner = nn.functional.linear(h, first.weight, b * T.sgn(h[0, 0, 0]))
    loss = T.sqr(second(T.nnet.gelu(inner))).mean()
    outputs = [loss, *grad(loss, [b, first.weight, *second.parameters()])]
    flags = {"device": "cuda", "amp": "bf16", "gpu.gemm.algo": "time"}
    with config.change_flags(flags):
        f = symdnn.function([x, b], outputs)
    with config.change_flags(device="cpu"):
        plain = symdnn.function([x, b], outputs)
    assert len(ops_of(f, GpuGemmKept)) == 1
    value = rng.standard_normal((8, 1024, 768)).astype("float32")
    biases = {k: np.full(3072, k, "float32") for k in (-3, 0, 2)}
    wanted = {k: plain(value, bias) for k, bias in biases.items()}
    for k in (-3, 0, 2, 2, 0, -3) * 3:
        agree(f(value, biases[k]), wanted[k])
    one_kernel.forget()


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_padding_between_convolutions(rng: Any, mode: str, amp: str) -> None:
    nn.init.seed(3)
    first, second = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 3)
    x = T.TensorType("float32", (2, 8, 20, 24))("x")

    def padded(y: Any) -> Any:
        return T.pad(y, ((0, 0), (0, 0), (1, 1), (2, 1)), mode=mode)

    loss = T.sqr(second(padded(T.nnet.relu(first(padded(x)))))).mean()
    outputs = [loss, *grad(loss, [x, *first.parameters(), *second.parameters()])]
    with config.change_flags(device="cpu"):
        plain = symdnn.function([x], outputs)
    with config.change_flags(device="cuda", amp=amp):
        f = symdnn.function([x], outputs)
    assert len(ops_of(f, ListedSums)) == 2
    value = rng.standard_normal((2, 8, 20, 24)).astype("float32")
    for _ in range(3):
        agree(f(value), plain(value))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rolls_along_two_axes(rng: Any, dtype: str) -> None:
    x = T.TensorType(dtype, (3, 14, 21, 16))("x")
    with config.change_flags(device="cuda"):
        f = symdnn.function([x], T.roll(x, (-3, 5), (1, 2)))
    value = rng.standard_normal((3, 14, 21, 16)).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(np.asarray(f(value)), np.roll(value, (-3, 5), (1, 2)))
