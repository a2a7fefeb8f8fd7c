"""Activations, normalisation, dropout and distances, as functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.dims import Dim
from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import DtypeLike, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable, constant
from symdnn.nn import init
from symdnn.nn.functional.of_layers import function_of
from symdnn.nn.layers import activation, torch_layers
from symdnn.nn.layers import dropout as drops
from symdnn.nn.layers.norm import LocalResponseNorm, moved_by_instances
from symdnn.nn.layers.softmax import dim_of_rank
from symdnn.nn.layers.torch_layers import GLU, CosineSimilarity, PairwiseDistance
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.norms import norm
from symdnn.ops.array.take import to_one_hot
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.shape import alloc, dims_of, shape_entries
from symdnn.ops.elementwise import activations as functions
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.math import log, tanh
from symdnn.ops.elemwise import like
from symdnn.ops.nn import normalization
from symdnn.ops.nn.dropout import dropout as dropped
from symdnn.ops.numpy_names import numpy_math
from symdnn.ops.random.random_stream import RandomStream
from symdnn.ops.torch_names.torch_distances import pdist
from symdnn.options import as_number

__all__ = [
    "alpha_dropout", "batch_norm", "celu", "cosine_similarity", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "elu", "gelu", "glu", "group_norm", "gumbel_softmax", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "instance_norm", "layer_norm", "leaky_relu",
    "local_response_norm", "log_softmax", "logsigmoid", "mish", "normalize", "one_hot",
    "pairwise_distance", "pdist", "prelu", "relu", "relu6", "rms_norm", "rrelu", "selu",
    "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh",
    "tanhshrink", "threshold",
]  # fmt: skip


def _of_elements(name: str, layer: Any) -> Any:
    return function_of(name, layer)


celu, elu = _of_elements("celu", torch_layers.CELU), _of_elements("elu", activation.ELU)
hardshrink = _of_elements("hardshrink", activation.HardShrink)
hardsigmoid = _of_elements("hardsigmoid", activation.HardSigmoid)
hardswish = _of_elements("hardswish", activation.HardSwish)
hardtanh = _of_elements("hardtanh", activation.HardTanh)
logsigmoid = _of_elements("logsigmoid", activation.LogSigmoid)
mish, selu = _of_elements("mish", activation.Mish), _of_elements("selu", activation.SELU)
relu6, silu = _of_elements("relu6", activation.ReLU6), _of_elements("silu", activation.SiLU)
softplus = _of_elements("softplus", activation.SoftPlus)
softshrink = _of_elements("softshrink", activation.SoftShrink)
softsign = _of_elements("softsign", activation.SoftSign)
tanhshrink = _of_elements("tanhshrink", activation.TanhShrink)
threshold = _of_elements("threshold", activation.Threshold)
gelu, glu = _of_elements("gelu", activation.GELU), _of_elements("glu", GLU)
sigmoid = functions.sigmoid
cosine_similarity = function_of("cosine_similarity", CosineSimilarity, ("x1", "x2"))
pairwise_distance = function_of("pairwise_distance", PairwiseDistance, ("x1", "x2"))


@advises()
def relu(input: TensorLike, inplace: bool = False) -> Variable:
    """``max(x, 0)``; ``inplace`` means nothing."""
    return functions.relu(as_variable(input))


@advises()
def leaky_relu(input: TensorLike, negative_slope: float = 0.01, inplace: bool = False) -> Variable:
    """``x`` above 0, ``negative_slope x`` below."""
    v = as_variable(input)
    return functions.relu(v, like(negative_slope, v))


@advises()
def prelu(input: TensorLike, weight: TensorLike) -> Variable:
    """``x`` above 0, ``weight x`` below; ``weight`` (1) or one for each channel (axis 1)."""
    v, w = as_variable(input), as_variable(weight)
    if w.type.ndim == 0 or w.type.shape[0] == 1 or v.type.ndim < 2:
        return functions.relu(v, w if w.type.ndim == 0 else w[0])
    return functions.relu(v, w.dimshuffle("x", 0, *["x"] * (v.type.ndim - 2)))


@advises()
def softmax(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DtypeLike | None = None
) -> Variable:
    """The softmax along ``dim``; None: the first axis of 1 or 3 dimensions, else the second."""
    v = as_variable(input if dtype is None else cast(input, dtype))
    return numpy_math.softmax(v, dim_of_rank(v.type.ndim) if dim is None else dim)


@advises()
def log_softmax(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DtypeLike | None = None
) -> Variable:
    """The logarithm of :func:`softmax`."""
    v = as_variable(input if dtype is None else cast(input, dtype))
    return numpy_math.log_softmax(v, dim_of_rank(v.type.ndim) if dim is None else dim)


@advises()
def softmin(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DtypeLike | None = None
) -> Variable:
    """The softmax of ``-x`` along ``dim``, as of :func:`softmax`."""
    return softmax(-as_variable(input), dim, _stacklevel, dtype)


@advises()
def gumbel_softmax(
    logits: TensorLike, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1, *,
    seed: int | None = None,
) -> Variable:  # fmt: skip
    """The softmax of ``(logits + Gumbel noise) / tau``; ``hard``: one-hot, with its gradient."""
    v = as_variable(logits)
    u = _stream(seed).uniform(v.shape, dtype=v.type.dtype, ndim=v.type.ndim)
    least = like(1e-20 if v.type.dtype == "float64" else 1e-30, v)
    noise = -log(maximum(-log(maximum(u, least)), least))
    soft = numpy_math.softmax((v + noise) / like(tau, v), dim)
    if not hard:
        return soft
    axis = dim % v.type.ndim
    best, n = argmax(soft, axis), dims_of(v)[axis]
    one = to_one_hot_along(best, n, axis, v.type.dtype)
    return one + soft - disconnected_grad(soft)


@advises()
def to_one_hot_along(index: Variable, n: Any, axis: int, dtype: str) -> Variable:
    """1 at ``index`` along a new ``axis`` of size ``n``, else 0."""
    flat = to_one_hot(index.flatten(), n, dtype)
    wide = flat.reshape((*dims_of(index), n))
    order = list(range(index.type.ndim))
    order.insert(axis, index.type.ndim)
    return wide.dimshuffle(order)


@advises()
def one_hot(tensor: TensorLike, num_classes: int = -1) -> Variable:
    """int64 1 at each integer along a new last axis of ``num_classes``, else 0.

    ``num_classes`` must be given: it is a size, and -1, the largest integer and 1, would be known
    in a call only. Raises :class:`~symdnn.errors.InputError` without it.
    """
    index = as_variable(tensor)
    if isinstance(num_classes, int) and num_classes < 1:
        raise InputError("one_hot: wanted num_classes, the number of classes")
    return to_one_hot_along(index, num_classes, index.type.ndim, "int64")


@advises()
def normalize(input: TensorLike, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Variable:
    """``x / max(its p-norm over dim, eps)``."""
    v = as_variable(input)
    return v / maximum(norm(v, p, axis=dim, keepdims=True), like(eps, v))


# -- dropout ---------------------------------------------------------------------------------------


def _stream(seed: int | None) -> RandomStream:
    """The stream of ``seed``, else of a number of :func:`symdnn.nn.init.generator`."""
    return RandomStream(int(init.generator().integers(2**62)) if seed is None else seed)


@advises()
def dropout(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False, *,
    seed: int | None = None,
) -> Variable:  # fmt: skip
    """Each element 0 with probability ``p``, the others divided by ``1 - p``.

    ``training`` is a bool of Python when the expression is built: in a module ``self.training``.
    """
    return _dropout(input, p, training, None, seed)


def _dropout(
    input: TensorLike, p: float, training: bool, positions: int | None, seed: int | None
) -> Variable:
    v, p = as_variable(input), as_number("dropout: p", p)
    if not 0 <= p <= 1:
        raise InputError(f"dropout: p={p!r}; wanted a probability, 0 to 1")
    if not training or not p:
        return v
    shared = () if positions is None else range(v.type.ndim - positions, v.type.ndim)
    made: Variable = dropped(v, p, _stream(seed), shared=shared)
    return made


@advises()
def dropout1d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Variable:
    """:func:`dropout` of whole channels of (N, C, L)."""
    return _dropout(input, p, training, 1, None)


@advises()
def dropout2d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Variable:
    """:func:`dropout` of whole channels of (N, C, H, W)."""
    return _dropout(input, p, training, 2, None)


@advises()
def dropout3d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Variable:
    """:func:`dropout` of whole channels of (N, C, D, H, W)."""
    return _dropout(input, p, training, 3, None)


@advises()
def alpha_dropout(
    input: TensorLike, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Variable:
    """``nn.AlphaDropout`` as a function."""
    made: Variable = drops.AlphaDropout(p).train(training)(input)
    return made


@advises()
def rrelu(
    input: TensorLike, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    inplace: bool = False,
) -> Variable:  # fmt: skip
    """``nn.RReLU`` as a function."""
    made: Variable = activation.RReLU(lower, upper).train(training)(input)
    return made


# -- normalisation ---------------------------------------------------------------------------------


def _last(normalized_shape: Any, ndim: int) -> tuple[int, ...]:
    n = len(shape_entries(normalized_shape))
    if n > ndim:
        raise InputError(
            f"normalized_shape={normalized_shape!r:.60}; the input has {ndim} dimensions"
        )
    return tuple(range(ndim - n, ndim))


@advises()
def layer_norm(
    input: TensorLike, normalized_shape: int | Sequence[int], weight: TensorLike | None = None,
    bias: TensorLike | None = None, eps: float = 1e-5,
) -> Variable:  # fmt: skip
    """Each example normalised over its last axes, scaled by ``weight``, shifted by ``bias``."""
    v = as_variable(input)
    axes = _last(normalized_shape, v.type.ndim)
    weight, bias = _fitting("layer_norm", [dims_of(v)[a] for a in axes], weight, bias)
    return normalization.layer_norm(v, weight, bias, axes, eps)


@advises()
def rms_norm(
    input: TensorLike, normalized_shape: int | Sequence[int], weight: TensorLike | None = None,
    eps: float | None = None,
) -> Variable:  # fmt: skip
    """``x / sqrt(mean(x^2) + eps) weight`` over the last axes."""
    made: Variable = torch_layers.RMSNorm(normalized_shape, eps, False)(input)
    axes = _last(normalized_shape, made.type.ndim)
    (scale,) = _fitting("rms_norm", [dims_of(made)[a] for a in axes], weight)
    return made if scale is None else made * scale


@advises()
def group_norm(
    input: TensorLike, num_groups: int, weight: TensorLike | None = None,
    bias: TensorLike | None = None, eps: float = 1e-5,
) -> Variable:  # fmt: skip
    """(N, C, ...) normalised over the channels of each group and all positions."""
    return normalization.group_norm(input, num_groups, weight, bias, eps)


def _fitting(what: str, sizes: Sequence[Dim], *given: TensorLike | None) -> list[Any]:
    """Weights of these sizes, or None; one of size 1 is not spread."""
    found = [None if v is None else as_variable(v) for v in given]
    return [
        v if v is None or v.type.ndim != len(sizes) else of_sizes(v, sizes, what) for v in found
    ]


def _statistics(v: Variable, weight: Any, bias: Any) -> tuple[Any, Any]:
    shape, dtype = dims_of(v)[1], v.type.dtype
    weight, bias = _fitting("weights of channels", [shape], weight, bias)
    if isinstance(shape, int):
        one: Any = np.ones(shape, dtype)
        none: Any = np.zeros(shape, dtype)
    else:
        one, none = (alloc(constant(k, dtype=dtype), shape) for k in (1, 0))
    return (one if weight is None else weight), (none if bias is None else bias)


@advises()
def batch_norm(
    input: TensorLike, running_mean: TensorLike | None, running_var: TensorLike | None,
    weight: TensorLike | None = None, bias: TensorLike | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Variable:  # fmt: skip
    """(N, C, ...) by the batch's statistics in ``training``, else by the running ones.

    In training, running statistics that are shared variables are updated as those of
    ``nn.BatchNorm2d`` (see :func:`symdnn.nn.state_updates`).
    """
    v = as_variable(input)
    gamma, beta = _statistics(v, weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            raise InputError("batch_norm: wanted running_mean and running_var, or training=True")
        sizes = [dims_of(v)[1]]
        fixed, spread = _fitting("batch_norm: statistics", sizes, running_mean, running_var)
        return normalization.batch_normalization_test(v, gamma, beta, fixed, spread, "spatial", eps)
    if not isinstance(running_mean, Shared) or not isinstance(running_var, Shared):
        return normalization.batch_normalization_train(v, gamma, beta, "spatial", eps)[0]
    pair = (running_mean, running_var)
    out = normalization.batch_normalization_train(v, gamma, beta, "spatial", eps, momentum, *pair)
    share = 1 - momentum
    out[0].tag.state_updates = [(r, new, share) for r, new in zip(pair, out[3:], strict=True)]
    return out[0]


@advises()
def instance_norm(
    input: TensorLike, running_mean: TensorLike | None = None,
    running_var: TensorLike | None = None, weight: TensorLike | None = None,
    bias: TensorLike | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Variable:  # fmt: skip
    """Each channel of each example of (N, C, ...) normalised over its positions.

    Running statistics that are shared variables are updated as those of ``nn.InstanceNorm2d``
    (see :func:`symdnn.nn.state_updates`); without ``use_input_stats`` they normalise.
    """
    v = as_variable(input)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise InputError(
                "instance_norm: wanted running_mean and running_var, or use_input_stats=True"
            )
        return batch_norm(v, running_mean, running_var, weight, bias, eps=eps)
    if weight is not None or bias is not None:
        weight, bias = _statistics(v, weight, bias)
    out = normalization.instance_norm(v, weight, bias, eps)
    if isinstance(running_mean, Shared) and isinstance(running_var, Shared):
        out.tag.state_updates = moved_by_instances(v, running_mean, running_var, momentum)
    return out


@advises()
def local_response_norm(
    input: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Variable:
    """``nn.LocalResponseNorm`` as a function."""
    made: Variable = LocalResponseNorm(size, alpha, beta, k)(input)
    return made
