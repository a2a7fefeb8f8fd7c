"""NumPy's and SciPy's function for each public function; no op of symdnn is used.

A function is looked up in :data:`OWN`, then under its name in NumPy, then in ``scipy.special``. One
that none of them has is evaluated by its op's reference, which only shows whether compiling changes
it. Operands are float64 or complex128, ints and bools.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special as sp

from tests.fuzz.oracle_conv import OWN as CONVOLUTIONS
from tests.fuzz.oracle_matrix import MATRICES
from tests.fuzz.oracle_names import NAMES
from tests.fuzz.program import cases

Function = Callable[..., Any]


def _sigmoid(x: Any) -> Any:
    return sp.expit(x)


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def _elu(x: Any, alpha: Any = 1) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _leaky(x: Any, alpha: Any = 0.01) -> Any:
    return np.where(x > 0, x, alpha * x)


def _gelu(x: Any, approximate: Any = False) -> Any:
    if approximate in (True, "tanh"):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * sp.ndtr(x)


def _log_ndtr(x: Any) -> Any:
    """SciPy's is 0 from 38 on, where it is -1e-316 and less."""
    return np.where(x > 5, np.log1p(-sp.ndtr(-np.abs(x))), sp.log_ndtr(x))


def _betaln(a: Any, b: Any) -> Any:
    """SciPy's, but NaN, which is not compared, where it loses digits of large operands, and at
    poles, where it has limits for some pairs of integers and ours is infinite."""
    unfit = np.maximum(np.abs(a), np.abs(b)) > 100
    for v in (np.asarray(a), np.asarray(b)):
        unfit = unfit | ((v <= 0) & (v == np.floor(v)))
    return np.where(unfit, np.nan, sp.betaln(a, b))


def _polygamma(n: Any, x: Any) -> Any:
    """SciPy's, which takes a step of 1 at a time from ``x`` up to 9: not from far below."""
    far = np.asarray(x) < -1000
    return np.where(far, np.nan, sp.polygamma(n, np.where(far, 1, x)))


def _fmod(x: Any, y: Any) -> Any:
    """NumPy's; some builds of it give -5 of int16 modulo the least one as 32763."""
    a, b = np.asarray(x), np.asarray(y)
    if "f" in a.dtype.kind + b.dtype.kind:
        return np.fmod(a, b)
    size = np.abs(a.astype(object)) % np.where(b == 0, 1, np.abs(b.astype(object)))
    return np.where(a < 0, -size, size).astype(np.result_type(a, b)) * (b != 0)


def _away(x: Any) -> Any:
    return np.trunc(x + np.copysign(0.5, x)) if np.asarray(x).dtype.kind == "f" else x


def _whole(f: Function) -> Function:
    """Rounding to whole numbers does not change ints; NumPy may take them through float64."""
    return lambda x: x if np.asarray(x).dtype.kind in "biu" else f(x)


def _round(x: Any, mode: Any = None) -> Any:
    return _away(x) if mode == "half_away_from_zero" else _whole(np.rint)(x)


def _attention(
    q: Any, k: Any, v: Any, *, scale: float, is_causal: bool = False, causal: str | None = None,
    window: Any = (None, None), softcap: float = 0.0,
) -> Any:  # fmt: skip
    s = q @ np.swapaxes(k, 2, 3) * scale
    s = softcap * np.tanh(s / softcap) if softcap else s
    i, j = np.ogrid[: s.shape[2], : s.shape[3]]
    at = i + (s.shape[3] - s.shape[2]) * (causal == "bottom_right")
    seen = (j <= at) if is_causal or causal or window[1] is not None else j >= 0
    seen = seen & (j >= at - window[0]) if window[0] is not None else seen
    s = np.where(seen, s, -np.inf)
    top = s.max(3, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(3, keepdims=True)
    return e / np.where(total > 0, total, 1) @ v


def _softmax(x: Any, axis: Any = None) -> Any:
    return sp.softmax(x, axis=-1 if axis is None else axis)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple | list) else (axis,)))


def _arg(which: Function) -> Function:
    """argmax over several axes: of the values in the order of the axes, ascending."""

    def found(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        x = np.asarray(x)
        axes = sorted(_axes(axis, x.ndim))
        rest = [a for a in range(x.ndim) if a not in axes]
        flat = np.transpose(x, rest + axes).reshape(*(x.shape[a] for a in rest), -1)
        out = which(flat, -1)
        return np.expand_dims(out, axes) if keepdims else out

    return found


def _norm(x: Any, L: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axes = _axes(axis, np.ndim(x))
    if np.inf == L:
        return np.max(np.abs(x), axes, keepdims=keepdims)
    if -np.inf == L:
        return np.min(np.abs(x), axes, keepdims=keepdims)
    if L == 0:
        return np.sum(x != 0, axes, keepdims=keepdims)
    return np.sum(np.abs(x) ** L, axes, keepdims=keepdims) ** (1 / L)


def _reduce(f: Function) -> Function:
    """NumPy's reduction, with lists of axes, and bools counted."""

    def found(x: Any, axis: Any = None, keepdims: bool = False, **more: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind in "biu" and f in (np.sum, np.prod):
            more["dtype"] = "uint64" if x.dtype.kind == "u" else "int64"
        axis = tuple(axis) if isinstance(axis, list) else axis
        return f(x, axis=axis, keepdims=keepdims, **more)

    return found


def _plain(f: Function, *ignored: str) -> Function:
    """Without arguments that change no values."""

    @functools.wraps(f)
    def found(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **{k: v for k, v in kwargs.items() if k not in ignored})

    return found


def _moment(f: Function) -> Function:
    return _plain(_reduce(f), "corrected", "dtype", "acc_dtype")


def _cumulate(f: Function) -> Function:
    def found(x: Any, axis: Any = None) -> Any:
        x = np.asarray(x)
        dtype = {"b": "int64", "i": "int64", "u": "uint64"}.get(x.dtype.kind)
        return f(x, axis, dtype=dtype)

    return found


def _cumulate_extreme(f: Any) -> Function:
    return lambda x, axis=None: f.accumulate(np.ravel(x) if axis is None else x, axis or 0)


def _dimshuffle(x: Any, pattern: Any) -> Any:
    order = [p for p in pattern if p != "x"]
    dropped = tuple(a for a in range(np.ndim(x)) if a not in order)
    x = np.squeeze(np.transpose(x, [*order, *dropped]), tuple(range(len(order), np.ndim(x))))
    return x[tuple(None if p == "x" else slice(None) for p in pattern)]


def _diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return np.diagonal(a, offset, axis1, axis2)


def _alloc_diag(v: Any, offset: int = 0) -> Any:
    v = np.asarray(v)
    n = v.shape[-1] + builtins.abs(offset)
    out = np.zeros((*v.shape[:-1], n, n), v.dtype)
    k = np.arange(v.shape[-1])
    out[..., k + builtins.max(-offset, 0), k + builtins.max(offset, 0)] = v
    return out


def _fill_diagonal(a: Any, val: Any, offset: int = 0) -> Any:
    a = np.array(a)
    rows, cols = np.indices(a.shape[:2]) if a.ndim == 2 else (None, None)
    if a.ndim == 2:
        a[cols - rows == offset] = val
    else:
        np.fill_diagonal(a, val)
    return a


def _top(x: Any, kth: Any, axis: Any) -> Any:
    """Values in falling order (the first -k of the rising one), as ``sorted=True`` gives them."""
    if axis is None:
        x, axis = np.ravel(x), 0
    rising = np.sort(x, axis)
    n = x.shape[axis]
    index = range(n - 1, n - 1 - kth, -1) if kth > 0 else range(-kth)
    return np.take(rising, np.array(list(index), int), axis)


def _roll(x: Any, shift: Any, axis: Any = None) -> Any:
    return np.roll(x, shift, axis)


def _tile(x: Any, reps: Any, ndim: Any = None) -> Any:
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    return np.tile(x, (1,) * ((ndim or 0) - len(reps)) + reps)


def _join(axis: int, *tensors: Any) -> Any:
    return np.concatenate([np.asarray(t) for t in tensors], axis)


def _split(x: Any, splits_size: Sequence[int], n_splits: Any = None, axis: int = 0) -> list[Any]:
    return np.split(x, np.cumsum(splits_size)[:-1], axis)


def _flatten(x: Any, ndim: Any = None, outdim: Any = None) -> Any:
    n = ndim or outdim or 1
    shape = np.shape(x)
    last = int(np.prod(shape[n - 1 :], dtype=int))
    return np.reshape(x, (*shape[: n - 1], last))


def _one_hot(y: Any, nb_class: int, dtype: Any = None) -> Any:
    return np.asarray(y)[:, None] == np.arange(nb_class)


def _compress(condition: Any, x: Any, axis: Any = None) -> Any:
    return np.compress(condition, x, axis)


def _put(arr: Any, indices: Any, values: Any, axis: int) -> Any:
    out = np.array(arr)
    np.put_along_axis(out, indices, values, axis)
    return out


def _batched_tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    if isinstance(axes, int):
        axes = (list(range(x.ndim - axes, x.ndim)), list(range(1, axes + 1)))
    moved = [[a - 1 for a in side] for side in axes]
    parts = [np.tensordot(a, b, moved) for a, b in zip(x, y)]
    return np.stack(parts) if parts else None


def _nll(logp: Any, labels: Any) -> Any:
    return -np.take_along_axis(logp, labels[:, None], 1)[:, 0]


def _permute_rows(x: Any, y: Any, inverse: bool = False) -> Any:
    if y.ndim < x.ndim:
        y = np.broadcast_to(y, x.shape)
    elif x.ndim < y.ndim:
        x = np.broadcast_to(x, y.shape)
    y = np.argsort(y, -1) if inverse else y
    return np.take_along_axis(x, y, -1)


def _tri_part(f: Function) -> Function:
    def found(m: Any, k: int = 0) -> Any:
        return f(m, k)

    return found


def _nonzero(a: Any, return_matrix: bool = False) -> Any:
    return np.stack(np.nonzero(a)) if return_matrix else list(np.nonzero(a))


def _unique(x: Any, **flags: bool) -> Any:
    """The inverse as a vector, as NumPy had it before 2.0."""
    found = np.unique(x, **flags)
    place = 1 + flags.get("return_index", False)
    if not flags.get("return_inverse"):
        return found
    return [np.ravel(a) if k == place else a for k, a in enumerate(found)]


def _trapezoid(y: Any, axis: int) -> Any:
    a = np.moveaxis(np.asarray(y), axis, 0)
    return (0.5 * (a[1:] + a[:-1])).sum(0)


def _setting(x: Any, index: Any, y: Any) -> Any:
    out = np.array(x)
    out[index] = y
    return out


def _adding(x: Any, index: Any, y: Any) -> Any:
    """By values of the part's shape: NumPy 2.4 adds a shorter vector for the first row alone."""
    out = np.array(x)
    np.add.at(out, index, np.broadcast_to(y, out[index].shape))
    return out


OWN: dict[str, Function] = {
    "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
    "abs_": np.abs, "angle": np.angle,
    "ceil_intdiv": lambda a, b: np.floor_divide(a, b) + (np.mod(a, b) != 0),
    "chi2sf": lambda x, k: sp.gammaincc(np.asarray(k) / 2, np.asarray(x) / 2),
    "clip": lambda x, low, high: np.where(x < low, low, np.where(x > high, high, x)),
    "clipped_relu": lambda x, ceiling=6: np.minimum(np.maximum(x, 0), ceiling),
    "complex": lambda a, b: a + 1j * np.asarray(b),
    "complex_from_polar": lambda r, t: r * (np.cos(t) + 1j * np.sin(t)),
    "digamma": sp.psi, "tri_gamma": lambda x: _polygamma(1, x),
    "polygamma": _polygamma, "divmod": lambda x, y: list(np.divmod(x, y)),
    "elu": _elu, "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772),
    "eq": np.equal, "neq": np.not_equal, "ge": np.greater_equal, "gt": np.greater,
    "le": np.less_equal, "lt": np.less, "gelu": _gelu, "int_div": np.floor_divide,
    "floor_div": np.floor_divide, "fmod": _fmod,
    "inv": lambda x: 1 / x, "reciprocal": lambda x: 1 / x,
    "iround": _round, "round": _round, "round_half_away_from_zero": _away,
    "round_half_to_even": _whole(np.rint), "rint": _whole(np.rint),
    "largest": lambda *a: functools.reduce(np.maximum, a),
    "smallest": lambda *a: functools.reduce(np.minimum, a),
    "leaky_relu": _leaky, "relu": lambda x, alpha=0: _leaky(x, alpha),
    "log_sigmoid": lambda x: -_softplus(-x), "sigmoid": _sigmoid, "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)), "silu": lambda x, beta=1: x * sp.expit(beta * x),
    "swish": lambda x, beta=1: x * sp.expit(beta * x), "hard_sigmoid": lambda x: np.minimum(
        np.maximum(0.2 * x + 0.5, 0), 1), "mod": np.mod,
    "mul": lambda *a: functools.reduce(np.multiply, a),
    "add": lambda *a: functools.reduce(np.add, a), "sub": np.subtract,
    "neg": np.negative, "sgn": np.sign, "sqr": lambda x: x * x, "square": lambda x: x * x,
    "pow": np.power, "switch": lambda c, x, y: np.where(np.asarray(c) != 0, x, y),
    "where": lambda c, x, y: np.where(np.asarray(c) != 0, x, y), "true_div": np.true_divide,
    "xlogx": lambda x: sp.xlogy(x, x), "xlogy0": sp.xlogy, "cast": lambda x, dtype: x,
    "imag": np.imag, "real": np.real, "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": _whole(np.floor), "ceil": _whole(np.ceil), "trunc": _whole(np.trunc),
    "acos": np.arccos, "acosh": np.arccosh, "lerp": lambda a, b, w: a + w * (b - a),
    "logit": sp.logit, "float_power": np.power, "log_softmax": lambda x, axis=-1: sp.log_softmax(
        x, axis), "fliplr": lambda m: np.flip(m, 1), "flipud": lambda m: np.flip(m, 0),
    "chunk": lambda x, n, axis=0: np.array_split(x, n, axis), "unstack": lambda x, axis=0: [
        np.take(x, k, axis) for k in range(np.shape(x)[axis])],
    "in1d": lambda a, b: np.isin(np.ravel(a), b), "row_stack": lambda a: np.vstack(a),
    "concat": lambda a: np.concatenate(a), "matrix_transpose": lambda x: np.swapaxes(x, -1, -2),
    "permute_dims": np.transpose, "histogram": lambda a, bins, range: list(
        np.histogram(a, bins, range)), "trapezoid": lambda y, axis=-1: _trapezoid(y, axis),
    # -- reductions
    "sum": _moment(np.sum), "prod": _plain(_reduce(np.prod), "dtype", "acc_dtype",
                                           "no_zeros_in_input"),
    "max": _reduce(np.max), "min": _reduce(np.min), "any": _reduce(np.any),
    "all": _reduce(np.all), "mean": _moment(np.mean), "var": _moment(np.var),
    "std": _moment(np.std), "argmax": _arg(np.argmax), "argmin": _arg(np.argmin),
    "max_and_argmax": lambda a, axis=None, keepdims=False: [
        _reduce(np.max)(a, axis, keepdims), _arg(np.argmax)(a, axis, keepdims)],
    "logsumexp": lambda x, axis=None, keepdims=False: np.reshape(sp.logsumexp(
        x, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keepdims),
        np.shape(np.any(x, axis, keepdims=keepdims))),
    "ptp": lambda x, axis=None: np.max(x, axis) - np.min(x, axis), "norm": _norm,
    "cumsum": _cumulate(np.cumsum), "cumprod": _cumulate(np.cumprod),
    "logcumsumexp": _cumulate_extreme(np.logaddexp), "betaln": _betaln,
    "zeta": lambda s, q=1: sp.zeta(s, q),
    "cummax": _cumulate_extreme(np.maximum), "cummin": _cumulate_extreme(np.minimum),
    # -- shapes
    "dimshuffle": _dimshuffle, "transpose": lambda x, axes=None: np.transpose(x, axes),
    "flatten": _flatten, "ravel": lambda x: np.reshape(x, (-1,)),
    "reshape": lambda x, shape, ndim=None: np.reshape(x, shape), "shape": lambda x: np.array(
        np.shape(x), "int64"), "shape_i": lambda x, axis: np.int64(np.shape(x)[axis]),
    "size": lambda x: np.int64(np.size(x)), "shape_padaxis": np.expand_dims,
    "shape_padleft": lambda t, n_ones=1: np.reshape(t, (1,) * n_ones + np.shape(t)),
    "shape_padright": lambda t, n_ones=1: np.reshape(t, np.shape(t) + (1,) * n_ones),
    "specify_shape": lambda x, shape: x, "addbroadcast": lambda x, *axes: x,
    "unbroadcast": lambda x, *axes: x, "patternbroadcast": lambda x, pattern: x,
    "tensor_copy": lambda x, name=None: x, "copy": lambda x, name=None: x,
    "atleast_nd": lambda x, n=1, left=True: np.reshape(x, (
        (1,) * (n - np.ndim(x)) + np.shape(x) if left else np.shape(x) + (1,) * (n - np.ndim(x)))),
    "atleast_1d": lambda x: OWN["atleast_nd"](x, 1), "atleast_2d": lambda x: OWN["atleast_nd"](
        x, 2), "atleast_3d": lambda x: OWN["atleast_nd"](x, 3),
    "alloc": lambda v, *shape: np.broadcast_to(v, shape), "fill": lambda like, v: np.broadcast_to(
        v, np.shape(like)), "zeros_like": lambda x, dtype=None: np.zeros(np.shape(x)),
    "ones_like": lambda x, dtype=None: np.ones(np.shape(x)),
    "full_like": lambda a, v, dtype=None: np.full(np.shape(a), v),
    "zeros": lambda shape, dtype=None: np.zeros(shape), "ones": lambda shape, dtype=None: np.ones(
        shape), "full": lambda shape, v, dtype=None: np.full(shape, v),
    "identity_like": lambda x: np.eye(*np.shape(x)), "join": _join, "stack": lambda *a, axis=0: (
        np.stack(a[0] if len(a) == 1 else a, axis)), "stacklists": lambda a: np.array(a),
    "concatenate": lambda a, axis=0: np.concatenate([np.asarray(t) for t in a], axis),
    "hstack": lambda a: np.hstack(a), "vstack": lambda a: np.vstack(a),
    "horizontal_stack": lambda *a: np.hstack(a), "vertical_stack": lambda *a: np.vstack(a),
    "dstack": lambda a: np.dstack(a), "make_vector": lambda a: np.array(a), "roll": _roll,
    "tile": _tile, "split": _split, "pad": lambda x, w, mode="constant", **kw: np.pad(
        x, w, mode, **kw), "meshgrid": lambda *a: list(np.meshgrid(*a)),
    "diagonal": _diagonal, "extract_diag": _diagonal, "alloc_diag": _alloc_diag,
    "trace": np.trace, "tril": _tri_part(np.tril), "triu": _tri_part(np.triu),
    "tri": lambda N, M=None, k=0, dtype=None: np.tri(N, M, k),
    "eye": lambda n, m=None, k=0, dtype=None: np.eye(n, m, k),
    "arange": lambda a, b=None, step=1, dtype=None: np.arange(
        *((0, a) if b is None else (a, b)), step),
    "linspace": lambda a, b, num=50, endpoint=True, dtype=None: np.linspace(a, b, num, endpoint),
    # -- picking and sorting
    "sort": lambda a, axis=-1: np.sort(a, axis), "argsort": lambda a, axis=-1: np.argsort(
        a, axis, kind="stable"), "topk": lambda x, kth, axis=-1: _top(x, kth, axis),
    "take": lambda a, i, axis=None, mode="raise": np.take(a, i, axis, mode=mode),
    "take_along_axis": lambda a, i, axis=-1: np.take_along_axis(a, i, axis),
    "put_along_axis": _put, "compress": _compress, "to_one_hot": _one_hot,
    "nonzero": _nonzero, "nonzero_values": lambda a: np.asarray(a)[np.nonzero(a)],
    "unique": _unique, "unique_values": _unique, "fill_diagonal": _fill_diagonal,
    "fill_diagonal_offset": _fill_diagonal, "choose": lambda a, choices, mode="raise": np.choose(
        a, choices, mode=mode), "searchsorted": lambda x, v, side="left": np.searchsorted(
        x, v, side), "inverse_permutation": lambda p: np.argsort(p, -1),
    "permute_row_elements": _permute_rows, "bincount": lambda x, weights=None, minlength=0: (
        np.bincount(x, weights, minlength)),
    # -- products
    "batched_dot": lambda a, b: np.stack([np.dot(x, y) for x, y in zip(a, b)]),
    "batched_tensordot": _batched_tensordot, "matrix_dot": lambda *a: functools.reduce(np.dot, a),
    "einsum": lambda subscripts, *a: np.einsum(subscripts, *a),
    # -- indexing
    "setting": _setting, "adding": _adding,
    "slope": lambda x, index, y: _adding(np.zeros_like(x), index, y),
    # -- networks
    "scaled_dot_product_attention": _attention,
    "softmax": _softmax, "logsoftmax": lambda x, axis=None: sp.log_softmax(
        x, axis=-1 if axis is None else axis), "softmax_with_bias": lambda x, b: _softmax(x + b, 1),
    "binary_crossentropy": lambda p, t: -(t * np.log(p) + (1 - t) * np.log1p(-p)),
    "sigmoid_binary_crossentropy": lambda x, t: np.logaddexp(0, x) - x * t,
    "log_ndtr": _log_ndtr, **CONVOLUTIONS, **NAMES,
    "nll_loss": _nll, "prepend_scalar_to_each_row": lambda v, m: np.insert(m, 0, v, 1),
}  # fmt: skip

#: Functions that round each of the results that they go through.
RUNNING = frozenset(["cumsum", "cumprod", "logcumsumexp", "nancumsum", "nancumprod",
                     "cumulative_sum", "cumulative_prod"])  # fmt: skip

#: Functions of deviations from a mean, which is rounded.
SPREADS = frozenset(["var", "std", "nanvar", "nanstd", "cov"])

#: Functions inside of which a sum of at least this size is rounded. Those of gamma functions are 0
#: where terms cancel, in SciPy too.
INSIDE = {"logsumexp": 1.0, "logsoftmax": 1.0, "log_softmax": 1.0, "hard_sigmoid": 0.5,
          "ultra_fast_sigmoid": 1.0, "crossentropy_softmax_argmax_1hot_with_bias": 1.0,
          "sigmoid_binary_crossentropy": 1.0, "gammaln": 1.0, "digamma": 1.0, "psi": 1.0,
          "mvlgamma": 8.0, "gammainc": 8.0, "gammaincc": 8.0, "chi2sf": 8.0,
          "betaln": 8.0, "betainc": 8.0, "betaincc": 8.0, "logit": 1.0, "logcumsumexp": 1.0,
          "logaddexp": 1.0, "logaddexp2": 1.0,
          # Elements of a matrix are sums that cancel: rounding is that of its norm.
          **dict.fromkeys(("inv", "matrix_inverse", "pinv", "solve", "cholesky", "eigvalsh",
                           "svdvals", "lstsq", "matrix_power"), 4.0)}  # fmt: skip

#: Functions of matrices whose elements are rounded relative to the largest one, this many times.
OF_NORM = {"expm": 16.0, "matrix_exp": 16.0, "cov": 8.0, "corrcoef": 8.0, "poly": 8.0,
           "polyfit": 16.0, "unwrap": 8.0, "geomspace": 4.0, "logspace": 4.0, "pinv": 64.0,
           "inv": 64.0, "matrix_inverse": 64.0}  # fmt: skip

#: Functions of which a library's kernel may give 0 where the result is below all normal float32.
FLUSHED = {"softmax", "softmax_with_bias", "crossentropy_softmax_argmax_1hot_with_bias",
           "h_softmax", "scaled_dot_product_attention"}  # fmt: skip

#: Functions whose results are exact for exact operands.
EXACT_NAMES = """
abs absolute abs_ neg negative sgn sign maximum minimum largest smallest clip switch where
cast real imag conj conjugate complex floor ceil trunc rint round iround round_half_to_even
round_half_away_from_zero max min argmax argmin max_and_argmax relu clipped_relu eq equal
neq not_equal lt le gt ge less less_equal greater greater_equal fabs fmax fmin copysign
nan_to_num clamp clamp_min clamp_max frexp ldexp nextafter modf around fix
apply_along_axis piecewise spacing
"""
EXACT = frozenset(EXACT_NAMES.split())


def oracle(path: str, fallback: Function) -> tuple[Function, bool]:
    """The NumPy function for a path, and whether it is independent of symdnn."""
    first, *rest = path.split(".")
    if first == "operator":
        return getattr(operator, rest[0]), True
    if first == "case":
        return (cases()[".".join(rest)].expected or fallback), True
    if path in MATRICES:
        return MATRICES[path], True
    name = rest[-1]
    for place in (np, sp):
        found = OWN.get(name) or getattr(place, name, None)
        if callable(found):
            return found, True
    return fallback, False
