"""The networks of :mod:`benchmarks.gpu.transformers` as programs of JAX, with the weights of ours.

Training has float32 parameters, products in bfloat16, and AdamW in the same jitted step, whose
parameters and moments are donated. Attention is cuDNN's on a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads import pcommon

__all__ = ["NETS", "run_jax"]

State = dict[str, Any]

#: Of networks by name: (weights, inputs, heads, groups of heads) -> scores.
NETS: dict[str, Callable[[State, Any, int, int], Any]] = {}


def _net(f: Callable[[State, Any, int, int], Any]) -> Callable[[State, Any, int, int], Any]:
    NETS[f.__name__.strip("_")] = f
    return f


# -- parts ----------------------------------------------------------------------------------------


def _linear(p: State, name: str, x: Any) -> Any:
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def _norm(p: State, name: str, x: Any, eps: float) -> Any:
    import jax.numpy as jnp
    from jax import lax

    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    centred = y - mean
    var = jnp.mean(centred * centred, -1, keepdims=True)
    found = centred * lax.rsqrt(var + eps) * p[name + ".weight"] + p[name + ".bias"]
    return found.astype(x.dtype)


def _rms_norm(p: State, name: str, x: Any, eps: float) -> Any:
    import jax.numpy as jnp
    from jax import lax

    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return y.astype(x.dtype) * p[name + ".weight"]


def _attention(
    q: Any, k: Any, v: Any, heads: int, groups: int, causal: bool, seen: int | None = None
) -> Any:
    """Of (batch, time, width), heads beside each other, to the first ``seen`` positions."""
    import jax
    import jax.numpy as jnp

    batch, length, width = q.shape
    own = (batch, length, -1, width // heads)
    how: Any = "cudnn" if jax.default_backend() == "gpu" else "xla"
    q, k, v = q.reshape(own), k.reshape(own), v.reshape(own)
    lengths = None if seen is None else jnp.full(batch, seen, jnp.int32)
    found = jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, implementation=how, key_value_seq_lengths=lengths
    )
    return found.reshape(batch, length, width)


def _rotated(x: Any, heads: int) -> Any:
    """Rotary positions of (batch, time, heads * features), whose pairs are halves of a head."""
    import jax.numpy as jnp

    batch, length, width = x.shape
    size = width // heads
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, size, 2) / size))
    cos, sin = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
    a, b = jnp.split(x.reshape(batch, length, heads, size).astype(jnp.float32), 2, -1)
    both = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    return both.astype(x.dtype).reshape(x.shape)


# -- networks -------------------------------------------------------------------------------------


@_net
def _gpt2(p: State, x: Any, heads: int, groups: int) -> Any:
    import jax
    import jax.numpy as jnp

    y = p["transformer.wte.weight"][x] + p["transformer.wpe.weight"][: x.shape[1]]
    for at in _layers(p, "transformer.h.{}.ln_1.weight"):
        name = f"transformer.h.{at}."

        def product(part: str, z: Any, name: str = name) -> Any:
            return z @ p[f"{name}{part}.weight"] + p[f"{name}{part}.bias"]

        q, k, v = jnp.split(product("attn.c_attn", _norm(p, name + "ln_1", y, 1e-5)), 3, -1)
        y = y + product("attn.c_proj", _attention(q, k, v, heads, heads, True))
        z = product("mlp.c_fc", _norm(p, name + "ln_2", y, 1e-5))
        y = y + product("mlp.c_proj", jax.nn.gelu(z, approximate=True))
    return _norm(p, "transformer.ln_f", y, 1e-5) @ p["transformer.wte.weight"].T


@_net
def _bert(p: State, x: Any, heads: int, groups: int) -> Any:
    """The last states; in training their scores by the embedding of words."""
    import jax

    name = "embeddings."
    y = p[name + "word_embeddings.weight"][x] + p[name + "token_type_embeddings.weight"][0]
    y = _norm(
        p, name + "LayerNorm", y + p[name + "position_embeddings.weight"][: x.shape[1]], 1e-12
    )
    for at in _layers(p, "encoder.layer.{}.output.dense.weight"):
        name = f"encoder.layer.{at}."
        q, k, v = (_linear(p, f"{name}attention.self.{n}", y) for n in ("query", "key", "value"))
        z = _linear(p, name + "attention.output.dense", _attention(q, k, v, heads, heads, False))
        y = _norm(p, name + "attention.output.LayerNorm", z + y, 1e-12)
        z = jax.nn.gelu(_linear(p, name + "intermediate.dense", y), approximate=False)
        y = _norm(p, name + "output.LayerNorm", _linear(p, name + "output.dense", z) + y, 1e-12)
    return y


@_net
def _vit(p: State, x: Any, heads: int, groups: int) -> Any:
    import jax
    import jax.numpy as jnp

    w = p["conv_proj.weight"]
    batch, side, size = x.shape[0], x.shape[2] // w.shape[2], w.shape[2]
    patches = x.astype(w.dtype).reshape(batch, 3, side, size, side, size)
    patches = patches.transpose(0, 2, 4, 1, 3, 5).reshape(batch, side * side, -1)
    y = patches @ w.reshape(w.shape[0], -1).T + p["conv_proj.bias"]
    first = jnp.broadcast_to(p["class_token"], (batch, 1, w.shape[0]))
    y = jnp.concatenate([first, y], 1) + p["encoder.pos_embedding"]
    count = y.shape[1]
    y = jnp.pad(y, ((0, 0), (0, -count % 8), (0, 0)))  # cuDNN's gradient takes no odd length
    for at in _layers(p, "encoder.layers.encoder_layer_{}.ln_1.weight"):
        name = f"encoder.layers.encoder_layer_{at}."
        z = _norm(p, name + "ln_1", y, 1e-6)
        whole = z @ p[name + "self_attention.in_proj_weight"].T
        q, k, v = jnp.split(whole + p[name + "self_attention.in_proj_bias"], 3, -1)
        z = _attention(q, k, v, heads, heads, False, count)
        y = y + _linear(p, name + "self_attention.out_proj", z)
        z = _linear(p, name + "mlp.0", _norm(p, name + "ln_2", y, 1e-6))
        y = y + _linear(p, name + "mlp.3", jax.nn.gelu(z, approximate=False))
    return _linear(p, "heads.head", _norm(p, "encoder.ln", y, 1e-6)[:, 0])


@_net
def _llama(p: State, x: Any, heads: int, groups: int) -> Any:
    import jax

    y = p["model.embed_tokens.weight"][x]
    for at in _layers(p, "model.layers.{}.input_layernorm.weight"):
        name = f"model.layers.{at}."
        z = _rms_norm(p, name + "input_layernorm", y, 1e-5)
        q, k, v = (_linear(p, f"{name}self_attn.{n}_proj", z) for n in "qkv")
        z = _attention(_rotated(q, heads), _rotated(k, groups), v, heads, groups, True)
        y = y + _linear(p, name + "self_attn.o_proj", z)
        z = _rms_norm(p, name + "post_attention_layernorm", y, 1e-5)
        gate = jax.nn.silu(_linear(p, name + "mlp.gate_proj", z))
        y = y + _linear(p, name + "mlp.down_proj", gate * _linear(p, name + "mlp.up_proj", z))
    return _linear(p, "lm_head", _rms_norm(p, "model.norm", y, 1e-5))


def _layers(p: State, name: str) -> range:
    count = 0
    while name.format(count) in p:
        count += 1
    return range(count)


# -- a step ---------------------------------------------------------------------------------------


def _loss(case: Any, heads: int, groups: int) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def loss(p: State, x: Any, labels: Any) -> Any:
        own = {k: v.astype(jnp.bfloat16) for k, v in p.items()}
        y = NETS[case.net](own, x, heads, groups)
        if case.net == "bert":
            y = y @ own["embeddings.word_embeddings.weight"].T
        y = y.reshape(-1, y.shape[-1])
        picked = jnp.take_along_axis(y, labels.reshape(-1, 1), 1)[:, 0].astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(y.astype(jnp.float32), -1) - picked)

    return loss


def _train(case: Any, heads: int, groups: int, rate: float) -> Callable[..., Any]:
    """(weights, first moments, second ones, count, inputs, labels) -> them, and the loss."""
    import jax
    import jax.numpy as jnp

    loss = _loss(case, heads, groups)

    def step(p: State, m: State, v: State, count: Any, x: Any, labels: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, labels)
        count = count + 1
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
        v = {k: 0.999 * v[k] + 0.001 * g[k] * g[k] for k in p}
        first, second = 1 - 0.9**count, 1 - 0.999**count
        p = {
            k: p[k] * (1 - 0.01 * rate) - rate * (m[k] / first) / (jnp.sqrt(v[k] / second) + 1e-8)
            for k in p
        }
        return p, m, v, count, value

    return step


def run_jax(
    case: Any, state: dict[str, np.ndarray], given: Any, heads: tuple[int, int], options: Any,
    compared: int, rate: float,
) -> dict[str, Any]:  # fmt: skip
    """Time, memory, and what the ``compared`` first calls gave; ``heads``: of queries, of keys."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    if options.cpu:
        jax.config.update("jax_platforms", "cpu")
    train = case.mode == "train"
    kind = jnp.float32 if train else jnp.bfloat16
    p = {k: jnp.asarray(np.asarray(v, np.float32), kind) for k, v in state.items()}
    p = {k: v for k, v in p.items() if not k.startswith("pooler")}
    calls = [
        (
            jnp.asarray(x, jnp.int32 if case.length else kind),
            *([jnp.asarray(y, jnp.int32)] if train else []),
        )
        for x, y in given
    ]
    begin = time.perf_counter()
    held: list[Any]
    if train:
        zeros = [{k: jnp.zeros_like(v) for k, v in p.items()} for _ in range(2)]
        held = [p, *zeros, jnp.zeros((), jnp.float32)]
        jitted = jax.jit(_train(case, *heads, rate), donate_argnums=(0, 1, 2, 3))
    else:
        held = [p]
        jitted = jax.jit(lambda p, x: NETS[case.net](p, x, *heads))
    step = jitted.lower(*held, *calls[0]).compile()
    use = step.memory_analysis()
    last: list[Any] = [None]

    def call(at: int) -> Any:
        found = step(*held, *calls[at])
        if train:
            *held[:], last[0] = found
        else:
            last[0] = found
        return last[0]

    first = [np.asarray(call(0), np.float64) for _ in range(compared if train else 1)]
    record: dict[str, Any] = {"first_s": round(time.perf_counter() - begin, 2), "first": first}
    count = [0]

    def rotating() -> None:
        count[0] += 1
        call(count[0] % len(calls))

    shortest = 0.01 if options.small else 0.6
    record["ms"] = pcommon.time_loop(
        rotating, lambda: jax.block_until_ready(last[0]), None, min_t=shortest, warm_t=0.25
    )["ms"]
    ring = sum(a.nbytes for pair in calls[1:] for a in pair)
    record["memory_gb"] = (
        use.argument_size_in_bytes + use.output_size_in_bytes - use.alias_size_in_bytes
        + use.temp_size_in_bytes + ring
    ) / 1e9  # fmt: skip
    stats = jax.local_devices()[0].memory_stats() or {}
    record["peak_gb"] = stats.get("peak_bytes_in_use", 0) / 1e9
    return record
