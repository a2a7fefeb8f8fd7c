"""Builders of normalisations: batch (Theano's signatures), layer, group and instance norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.dims import known, normal_axis
from symdnn.graph.names.torch_words import advises
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.typing import AxisLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.array.view import expand_dims
from symdnn.ops.core.dtype import is_narrow_float, upcast
from symdnn.ops.core.shape import dims_of, ones_like, specify_type, zeros_like
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.nn.batchnorm import (
    BatchNormInference,
    BatchNormTrain,
    LayerNorm,
    element_count,
    parameter_dtype,
)
from symdnn.options import as_int, as_number


def norm_axes(axes: Any, ndim: int, what: str) -> tuple[int, ...]:
    """``"per-activation"``, ``"spatial"``, an int or ints as sorted axes; else OptionError."""
    if isinstance(axes, str):
        if axes not in ("per-activation", "spatial"):
            raise OptionError(f"{what}: axes={axes!r}; wanted 'per-activation', 'spatial' or ints")
        return (0,) if axes == "per-activation" else (0, *range(2, ndim))
    given = list(axes) if isinstance(axes, list | tuple | np.ndarray) else [axes]
    normal = tuple(sorted({normal_axis(what, a, ndim) for a in given}))
    if len(normal) != len(given) or not normal:
        raise OptionError(f"{what}: axes={axes!r} are not distinct axes of {ndim} dimension(s)")
    return normal


def _inputs(x: TensorLike, *parameters: Any) -> tuple[Variable, list[Variable]]:
    """The input and its parameters in the dtypes of the ops.

    They are upcast to a common dtype as in Theano; but with a float16 or bfloat16 input the
    parameters are float32.
    """
    v, ps = as_variable(x), [as_variable(p) for p in parameters]
    if not isinstance(v.type, TensorType) or v.type.ndim == 0:
        raise NdimMismatch("batch normalisation", "a tensor of at least one dimension", v.type)
    if not is_narrow_float(v.type.dtype):
        v = cast(v, upcast(v.type.dtype, *(p.type.dtype for p in ps)))
    return v, [cast(p, parameter_dtype(v.type.dtype)) for p in ps]


def _parameter(p: Variable, ndim: int, axes: Sequence[int], what: str) -> Variable:
    """``p`` with ``ndim`` dimensions, statically 1 on ``axes``, which it may lack."""
    if p.type.ndim == ndim - len(axes) and p.type.ndim != ndim:
        return expand_dims(p, axes)
    if p.type.ndim != ndim:
        raise OptionError(
            f"{what}: parameters must have {ndim} dimensions like the input, or "
            f"{ndim - len(axes)} without the normalised axes {tuple(axes)}; got {p.type}"
        )
    one = [1 if i in axes else d for i, d in enumerate(p.type.shape)]
    return specify_type(p, p.type.with_shape(one))


def _number(value: Any) -> float | None:
    """``value`` as a Python float if it is one or a constant scalar."""
    if isinstance(value, Constant):
        return float(value.data)
    return None if isinstance(value, Variable) else float(value)


@advises(eps="epsilon", momentum="running_average_factor", weight="gamma", bias="beta")
def batch_normalization_train(
    inputs: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    axes: Any = "per-activation",
    epsilon: Any = 1e-4,
    running_average_factor: Any = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    hints: Hints | None = None,
) -> tuple[Variable, ...]:
    """Normalise by the batch's own statistics (Ioffe and Szegedy, 2015).

    ``axes``: ``"per-activation"`` (axis 0), ``"spatial"`` (all but axis 1), or any ints.
    ``gamma`` and ``beta`` have the ndim of ``inputs`` (1 on the axes) or lack these axes.
    Returns ``(out, mean, invstd)``, the statistics with the ndim of ``gamma``. With both running
    arrays it also returns the new ones, ``old * (1 - f) + new * f``, with the unbiased variance
    (``m / (m - 1)``). They have the type of the old ones, so that they can be updates.
    ``epsilon`` is a number or a symbolic scalar.
    """
    what = "batch_normalization_train"
    if (running_mean is None) != (running_var is None):
        raise OptionError(f"{what}: wanted both running_mean and running_var, or neither; got one")
    old = [as_variable(r) for r in (running_mean, running_var) if r is not None]
    x, ps = _inputs(inputs, gamma, beta, *old)
    ax = norm_axes(axes, x.type.ndim, what)
    dropped = [] if ps[0].type.ndim == x.type.ndim else ax
    ps = [_parameter(p, x.type.ndim, ax, what) for p in ps]
    if old:
        factor = _number(running_average_factor)
        # A Python number is not rounded to floatX first: 0.1 would lose digits in float64.
        given = running_average_factor if factor is None else np.asarray(factor)
        ps.insert(2, cast(as_variable(given), ps[0].type.dtype))
    number = _number(epsilon)
    if number is None:
        out: Sequence[Variable] = _composed_train(x, ps, ax, epsilon)
    else:
        out = BatchNormTrain(ax, number, bool(old))(x, *ps, hints=hints)
    new = [_like(v, r, ax) for v, r in zip(out[3:], old, strict=True)]
    return (out[0], *(_without(v, dropped) for v in out[1:3]), *new)


def _without(statistic: Variable, axes: Sequence[int]) -> Variable:
    """A statistic without the axes that its gamma lacks."""
    if not axes:
        return statistic
    return statistic.dimshuffle([i for i in range(statistic.type.ndim) if i not in axes])


def _like(new: Variable, old: Variable, axes: Sequence[int]) -> Variable:
    """A new running value in the dtype, ndim and broadcast pattern of the old one."""
    if old.type.ndim != new.type.ndim:
        new = _without(new, axes)
    return specify_type(cast(new, old.type.dtype), old.type)


def _composed_train(
    x: Variable, parameters: Sequence[Variable], axes: Sequence[int], epsilon: Any
) -> list[Variable]:
    """Batch normalisation in elementary ops, for a symbolic epsilon."""
    gamma, beta, *running = parameters
    dtype = gamma.type.dtype
    m = element_count(x, axes, dtype)
    mean = cast(x, dtype).sum(axis=axes, keepdims=True) / m
    centred = x - mean
    squares = (centred * centred).sum(axis=axes, keepdims=True)
    invstd = (squares / m + cast(epsilon, dtype)) ** np.asarray(-0.5, dtype)
    y = cast(centred * (invstd * gamma) + beta, x.type.dtype)
    if not running:
        return [y, mean, invstd]
    factor, old_mean, old_var = running
    rest = (m - 1.0).clip(1.0, np.inf) if isinstance(m, Variable) else np.maximum(m - 1, 1)
    keep = 1.0 - factor
    return [
        y,
        mean,
        invstd,
        old_mean * keep + mean * factor,
        old_var * keep + squares / rest * factor,
    ]


@advises(eps="epsilon", weight="gamma", bias="beta")
def batch_normalization_test(
    inputs: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    mean: TensorLike,
    var: TensorLike,
    axes: Any = "per-activation",
    epsilon: Any = 1e-4,
    *,
    hints: Hints | None = None,
) -> Variable:
    """Normalise by given statistics: ``(x - mean) * gamma / sqrt(var + epsilon) + beta``.

    Parameters and axes as in :func:`batch_normalization_train`. Differentiable with respect to
    all five tensors.
    """
    what = "batch_normalization_test"
    x, ps = _inputs(inputs, gamma, beta, mean, var)
    ax = norm_axes(axes, x.type.ndim, what)
    g, b, m, v = (_parameter(p, x.type.ndim, ax, what) for p in ps)
    number = _number(epsilon)
    if number is not None:
        return BatchNormInference(ax, number)(x, g, b, m, v, hints=hints)
    invstd = (v + cast(epsilon, v.type.dtype)) ** np.asarray(-0.5, v.type.dtype)
    return cast((x - m) * (g * invstd) + b, x.type.dtype)


@advises(weight="gamma", bias="beta", var="std")
def batch_normalization(
    inputs: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    mean: TensorLike,
    std: TensorLike,
    mode: str = "low_mem",
) -> Variable:
    """``(x - mean) * (gamma / std) + beta`` with given mean and standard deviation.

    This is Theano's older function: its arguments must broadcast without changes, and both values
    of ``mode`` (``"low_mem"``, ``"high_mem"``) mean the same here.
    """
    if mode not in ("low_mem", "high_mem"):
        raise OptionError(f"batch_normalization: mode={mode!r}; wanted 'low_mem' or 'high_mem'")
    x = as_variable(inputs)
    return (x - mean) * (as_variable(gamma) / as_variable(std)) + beta


@advises(normalized_shape="axes are the dimensions", weight="gamma", bias="beta", eps="epsilon")
def layer_norm(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    axes: AxisLike = -1,
    epsilon: float = 1e-5,
    *,
    hints: Hints | None = None,
) -> Variable:
    """Normalise each example over ``axes`` (default: the last), then scale and shift.

    ``gamma`` (None: ones) and ``beta`` (None: zeros) have the shape of the normalised axes or the
    ndim of ``x``. Ba, Kiros and Hinton 2016.
    """
    v, ps = _inputs(x, *_pair(gamma, beta))
    ndim = v.type.ndim
    ax = norm_axes(axes, ndim, "layer_norm")
    others = [i for i in range(ndim) if i not in ax]
    return _layer_norm(
        v, [_parameter(p, ndim, others, "layer_norm") for p in ps], ax, epsilon, hints
    )


@advises(num_groups="groups", weight="gamma", bias="beta", eps="epsilon")
def group_norm(
    x: TensorLike,
    groups: int,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    epsilon: float = 1e-5,
    *,
    hints: Hints | None = None,
) -> Variable:
    """Normalise (N, C, ...) over each of ``groups`` groups of channels and all positions.

    ``gamma`` and ``beta`` are vectors of C. Wu and He 2018.
    """
    v, ps = _inputs(x, *_pair(gamma, beta))
    if v.type.ndim < 2:
        raise TypeMismatch("group_norm", "an input (N, C, ...)", v.type)
    n, c, *rest = dims_of(v)
    size, groups = known(c), as_int("group_norm: groups", groups)
    if groups < 1 or (size is not None and size % groups):
        raise OptionError(f"group_norm: {groups} groups do not divide {size} channels")
    split = v.reshape((n, groups, c // groups, *rest), ndim=v.type.ndim + 1)
    pattern = ["x", 0, 1, *("x" for _ in rest)]
    wide = [p.reshape((groups, c // groups)).dimshuffle(pattern) for p in ps]
    axes = tuple(range(2, v.type.ndim + 1))
    y = _layer_norm(split, wide, axes, epsilon, hints)
    return specify_type(y.reshape(dims_of(v), ndim=v.type.ndim), v.type)


@advises(weight="gamma", bias="beta", eps="epsilon")
def instance_norm(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    epsilon: float = 1e-5,
    *,
    hints: Hints | None = None,
) -> Variable:
    """Normalise each channel of each example of (N, C, ...) over its positions.

    ``gamma`` and ``beta`` are vectors of C. Ulyanov et al. 2016.
    """
    v, ps = _inputs(x, *_pair(gamma, beta))
    if v.type.ndim < 3:
        raise TypeMismatch("instance_norm", "an input (N, C, positions...)", v.type)
    axes = tuple(range(2, v.type.ndim))
    wide = [p.dimshuffle(["x", 0, *("x" for _ in axes)]) for p in ps]
    return _layer_norm(v, wide, axes, epsilon, hints)


def _pair(gamma: Any, beta: Any) -> list[Variable]:
    """Both, or neither; a missing one is ones or zeros."""
    if gamma is None and beta is None:
        return []
    return [
        ones_like(beta) if gamma is None else gamma,
        zeros_like(gamma) if beta is None else beta,
    ]


def _layer_norm(
    x: Variable,
    parameters: Sequence[Variable],
    axes: tuple[int, ...],
    epsilon: float,
    hints: Hints | None,
) -> Variable:
    if not parameters:
        dtype = parameter_dtype(x.type.dtype)
        ones = (1,) * x.type.ndim
        parameters = [as_variable(np.full(ones, v, dtype)) for v in (1, 0)]
    return LayerNorm(axes, as_number("epsilon", epsilon))(x, *parameters, hints=hints)[0]


OPERATORS = {"batch_normalization_train": batch_normalization_train}
