"""Which products with parameters become one, which do not, and that the values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import numpy_dtype
from symdnn.libraries.cublaslt.joined import BYTES_OF_A_LAUNCH
from symdnn.ops.array.join import Join
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.gpublas import GpuGemmBase
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90")
registry.load()


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return new_rng().standard_normal(shape).astype(numpy_dtype(dtype))


def parameter(*shape: int, dtype: str = "float32") -> Any:
    """A parameter whose sizes are known."""
    variable = symdnn.shared(drawn(*shape, dtype=dtype))
    variable.type = T.TensorType(dtype, shape)
    return variable


def ops_of(f: Any, *kinds: Any) -> list[Any]:
    return [n.op for n in f.fgraph.toposort() if isinstance(n.op, kinds)]


def products(f: Any) -> int:
    return len(ops_of(f, Dot, BatchedDot, GpuGemmBase))


def compiled(x: Any, outputs: Any, mode: Any = CUDA, **more: Any) -> Any:
    return symdnn.function([x], outputs, mode=mode, **more)


def attended(x: Any, projections: Any, heads: int = 4) -> Any:
    """Attention of query, key and value made from ``x`` (batch, time, features)."""
    q, k, v = (
        y.reshape((*x.shape[:2], heads, -1)).dimshuffle(0, 2, 1, 3)
        for y in (p(x) for p in projections)
    )
    y = T.nnet.scaled_dot_product_attention(q, k, v)
    return y.dimshuffle(0, 2, 1, 3).reshape(x.shape, ndim=3)


def layers(count: int, bias: bool = True, dtype: str = "float32") -> list[Any]:
    """Dense layers 64 -> 64."""
    nn.init.seed(3)
    return [nn.Linear(64, 64, bias).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(2, 16), (None, None)])
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_query_key_and_value(bias, sizes, amp):
    dtype = "bfloat16" if amp == "off" else "float32"
    x = T.TensorType(dtype, (*sizes, 64))("x")
    with config.change_flags(amp=amp):
        f = compiled(x, attended(x, layers(3, bias, dtype)))
    assert products(f) == len(ops_of(f, Join)) - bias == 1
    # The joined weights are kept, so that a call copies none of them.
    kept = {v.owner.op for v in f.stages.program.regions[0].outputs if v.owner is not None}
    assert any(isinstance(op, Join) for op in kept)


def gated(x: Any) -> Any:
    a, b = layers(2, False)
    return T.nnet.silu(a(x)) * b(x)


def of_experts(x: Any) -> Any:
    """Three experts that all tokens visit, each for a batch of four groups."""
    return sum(T.tanh(T.batched_dot(x, parameter(4, 64, 8))) for _ in range(3))


def alike(x: Any) -> Any:
    """Equal epilogues are joined, too."""
    a, b = layers(2)
    return T.nnet.relu(a(x)) * T.nnet.relu(b(x))


def gradient(x: Any) -> Any:
    """Parameters that only the function's results differ by are no obstacle."""
    a, b = layers(2)
    y = (T.tanh(a(x)) * T.sin(b(x))).sum()
    return T.grad(y, x)


@pytest.mark.parametrize(
    ("build", "shape", "count"),
    [(gated, (8, 64), 1), (of_experts, (4, 8, 64), 1), (alike, (8, 64), 1), (gradient, (8, 64), 3)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_others_that_are_joined(build, shape, count):
    x = T.TensorType("float32", shape)("x")
    y = build(x)
    f = compiled(x, y)
    assert products(f) == count
    a = drawn(*shape)
    (wanted,) = evaluate([y], {x: a})
    (found,) = evaluate(f.fgraph.outputs, {f.fgraph.inputs[0]: a})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# -- near misses -----------------------------------------------------------------------------------


def epilogues_differ(x: Any) -> Any:
    a, b, c = layers(3)
    return c(T.nnet.relu(a(x))).sum(axis=1) + T.tanh(b(x)).sum(axis=1)


def results_are_outputs(x: Any) -> Any:
    return [layer(x) for layer in layers(2)]


def inputs_differ(x: Any) -> Any:
    a, b = layers(2)
    return T.tanh(a(x)) + T.tanh(b(x * 2))


def rows_are_read_as_one(x: Any) -> Any:
    """A reshape that needs dense memory would copy."""
    return sum(T.tanh(layer(x).flatten()) for layer in layers(2))


def odd_columns(x: Any) -> Any:
    return sum(T.tanh(T.dot(x, parameter(64, n))).sum(axis=1) for n in (5, 7))


def too_large(x: Any) -> Any:
    """The second copy of the weights would be larger than a launch is worth."""
    columns = BYTES_OF_A_LAUNCH // (2 * 64 * 4) + 4
    return sum(T.tanh(T.dot(x, parameter(64, columns))) for _ in range(2))


def low_rank(x: Any) -> Any:
    """``x @ w + (x @ a) @ b`` (LoRA; Hu et al. 2021): w's product is the other one's addend."""
    return T.dot(x, parameter(64, 64)) + T.dot(T.dot(x, parameter(64, 8)), parameter(8, 64))


def chosen(x: Any) -> Any:
    """There is no parameter cache beside a lazy choice."""
    a, b = layers(2, False)
    both = T.tanh(a(x)) + T.sin(b(x))
    return symdnn.ifelse(x.sum() > 0, both, -x)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (epilogues_differ, 3), (results_are_outputs, 2), (inputs_differ, 2),
        (rows_are_read_as_one, 2), (odd_columns, 2), (too_large, 2), (low_rank, 3), (chosen, 2),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_what_is_not_joined(build, count):
    x = T.TensorType("float32", (8, 64))("x")
    assert products(compiled(x, build(x))) == count


def test_weights_that_the_function_updates_or_gets_are_not_joined():
    x, w = T.TensorType("float32", (8, 64))("x"), T.TensorType("float32", (64, 64))("w")
    a, b = (layer.weight for layer in layers(2, False))
    y = T.tanh(T.dot(x, a)) + T.sin(T.dot(x, b))
    assert products(compiled(x, y, updates=[(a, a * 2)])) == 2
    assert products(compiled(x, y, updates=[(symdnn.shared(1), 2)])) == 1
    z = T.tanh(T.dot(x, w)) + T.sin(T.dot(x, b))
    assert products(symdnn.function([x, w], z, mode=CUDA)) == 2


def test_flags_and_tags_that_switch_it_off():
    x = T.TensorType("float32", (8, 64))("x")
    y = gated(x)
    assert products(compiled(x, y, CUDA.excluding("joined_products"))) == 2
    for flags in ({"keep_prepared": False}, {"gpu.epilogue": "off"}):
        with config.change_flags(**flags):
            assert products(compiled(x, y)) == 2
