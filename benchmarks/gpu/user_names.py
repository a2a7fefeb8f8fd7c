"""The names that :mod:`benchmarks.gpu.user_programs` uses, for symdnn, PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu.nest import F, Nest, T, jax, jnp, symdnn, torch

__all__ = ["OURS", "THEIRS", "Make", "floats", "mask", "number", "row", "whole"]


class _Names:
    """What all libraries name alike is the module's own."""

    module: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def called(self, program: Any) -> Callable[..., Any]:
        """The program of arrays alone."""
        return lambda *xs: program(self, *xs)

    def to_float(self, v: Any) -> Any:
        """In float32."""
        return v.astype("float32")

    def to_int(self, v: Any) -> Any:
        """In int32."""
        return v.astype("int32")

    def to_int8(self, v: Any) -> Any:
        """In int8."""
        return v.astype("int8")

    def _reduced(self, name: str, v: Any, axis: Any, keep: bool) -> Any:
        return getattr(self.module, name)(v, axis=axis, keepdims=keep)

    def sum(self, v: Any, axis: Any = None, keep: bool = False) -> Any:
        """The sum over axes."""
        return self._reduced("sum", v, axis, keep)

    def mean(self, v: Any, axis: Any = None, keep: bool = False) -> Any:
        """The mean over axes."""
        return self._reduced("mean", v, axis, keep)

    def max(self, v: Any, axis: Any = None, keep: bool = False) -> Any:
        """The largest over axes."""
        return self._reduced("max", v, axis, keep)

    def min(self, v: Any, axis: Any = None, keep: bool = False) -> Any:
        """The least over axes."""
        return self._reduced("min", v, axis, keep)

    def eq(self, a: Any, b: Any) -> Any:
        """Where elements are equal."""
        return a == b

    def sorted(self, v: Any) -> Any:
        """Rows in ascending order."""
        return self.module.sort(v, -1)

    def dims(self, v: Any) -> Any:
        """The sizes, which are known."""
        return tuple(v.shape)

    def repeat(self, v: Any, n: int, axis: int) -> Any:
        """Each entry of an axis so many times."""
        return self.module.repeat(v, n, axis)

    def pad(self, v: Any, widths: Any) -> Any:
        """Zeros around."""
        return self.module.pad(v, widths)


class _Symdnn(_Names):
    module = T

    def graded(self, program: Any, wrt: int) -> Callable[..., Any]:
        """Value and gradients by the first ``wrt`` operands."""

        def both(*xs: Any) -> Any:
            value = program(self, *xs)
            return [value, *symdnn.grad(value, list(xs[:wrt]))]

        return both

    def eq(self, a: Any, b: Any) -> Any:
        return T.eq(a, b)

    def stop(self, v: Any) -> Any:
        """A value without gradient."""
        return symdnn.gradient.disconnected_grad(v)

    def slope(self, f: Any, x: Any) -> Any:
        """The gradient of a sum by what is summed over, which has gradients itself."""
        return symdnn.grad(T.sum(f(x)), x)

    def stack(self, vs: Any, axis: int) -> Any:
        """Arrays along a new axis."""
        return T.stack(vs, axis=axis)

    def log_softmax(self, v: Any, axis: int) -> Any:
        """Logarithms of a softmax."""
        return T.log_softmax(v, axis=axis)

    def softmax(self, v: Any, axis: int) -> Any:
        """Exponentials over their sum."""
        return T.softmax(v, axis=axis)

    def softplus(self, v: Any) -> Any:
        """log(1 + exp(v))."""
        return T.softplus(v)

    def elu(self, v: Any) -> Any:
        """v, or exp(v) - 1 below 0."""
        return T.elu(v)

    def logsumexp(self, v: Any, axis: int) -> Any:
        """The logarithm of a sum of exponentials."""
        return T.logsumexp(v, axis=axis)

    def take_along(self, v: Any, i: Any, axis: int) -> Any:
        """Elements at places along an axis."""
        return T.take_along_axis(v, i, axis)

    def topk(self, v: Any, k: int) -> Any:
        """The largest of rows, and their places."""
        return T.topk_and_argtopk(v, k, axis=1, sorted=True)

    def bincount(self, v: Any, n: int) -> Any:
        """How often each of ``n`` numbers comes."""
        return T.bincount(v, minlength=n)[:n]

    def dims(self, v: Any) -> Any:
        return v.type.shape

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        """Correlation of images with filters."""
        return T.nnet.conv2d(
            x, w, border_mode=(pad, pad), subsample=(stride, stride), num_groups=groups,
            filter_flip=False,
        )  # fmt: skip

    def put(self, v: Any, at: Any, new: Any) -> Any:
        """An array with new entries at places."""
        return T.set_subtensor(v[at], new)

    def scan(self, f: Any, first: Any, xs: Any) -> Any:
        """The last carry, and what each step gives, of ``f(carry, x) -> (carry, y)``."""
        return symdnn.control.scan(f, first, xs)

    def cummax(self, v: Any, axis: int) -> Any:
        """The largest so far."""
        return T.cummax(v, axis)

    def places(self, v: Any, x: Any) -> Any:
        """How many of the sorted numbers are not above each."""
        return T.searchsorted(v, x, side="right")


class _Torch(_Names):
    module = torch

    def graded(self, program: Any, wrt: int) -> Callable[..., Any]:
        """Value and gradients by the first ``wrt`` operands."""

        def both(*xs: Any) -> Any:
            own = [x.detach().requires_grad_() for x in xs[:wrt]]
            value = program(self, *own, *xs[wrt:])
            return [value.detach(), *torch.autograd.grad(value, own)]

        return both

    def _reduced(self, name: str, v: Any, axis: Any, keep: bool) -> Any:
        own = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))
        return own(v) if axis is None else own(v, axis, keep)

    def to_float(self, v: Any) -> Any:
        return v.float()

    def to_int(self, v: Any) -> Any:
        return v.int()

    def to_int8(self, v: Any) -> Any:
        return v.to(torch.int8)

    def stop(self, v: Any) -> Any:
        """A value without gradient."""
        return v.detach()

    def slope(self, f: Any, x: Any) -> Any:
        """The gradient of a sum by what is summed over, which has gradients itself."""
        return torch.func.grad(lambda v: f(v).sum())(x)

    def segment_sum(self, v: Any, i: Any, n: int) -> Any:
        """The sums of what has equal numbers."""
        return v.new_zeros((n, *v.shape[1:])).index_add(0, i, v)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger one."""
        return torch.maximum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, min=b)

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller one."""
        return torch.minimum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, max=b)

    def arange(self, n: int) -> Any:
        """Whole numbers below ``n``."""
        return torch.arange(n, device="cuda" if torch.cuda.is_available() else "cpu")

    def transpose(self, v: Any, axes: Any) -> Any:
        """Axes in another order."""
        return v.permute(axes).contiguous()

    def flip(self, v: Any, axis: int) -> Any:
        """An axis backwards."""
        return torch.flip(v, (axis,))

    def sorted(self, v: Any) -> Any:
        return torch.sort(v, -1)[0]

    def softplus(self, v: Any) -> Any:
        """log(1 + exp(v))."""
        return F.softplus(v)

    def elu(self, v: Any) -> Any:
        """v, or exp(v) - 1 below 0."""
        return F.elu(v)

    def take_along(self, v: Any, i: Any, axis: int) -> Any:
        """Elements at places along an axis."""
        return torch.gather(v, axis, i)

    def topk(self, v: Any, k: int) -> Any:
        """The largest of rows, and their places."""
        return tuple(torch.topk(v, k, 1))

    def bincount(self, v: Any, n: int) -> Any:
        """How often each of ``n`` numbers comes."""
        return torch.bincount(v, minlength=n)

    def repeat(self, v: Any, n: int, axis: int) -> Any:
        return torch.repeat_interleave(v, n, axis)

    def pad(self, v: Any, widths: Any) -> Any:
        return F.pad(v, [n for both in reversed(widths) for n in both])

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        """Correlation of images with filters."""
        return F.conv2d(x, w, stride=stride, padding=pad, groups=groups)

    def put(self, v: Any, at: Any, new: Any) -> Any:
        """An array with new entries at places."""
        return torch.index_put(v, at, new)

    def scan(self, f: Any, first: Any, xs: Any) -> Any:
        """The last carry, and what each step gives, of ``f(carry, x) -> (carry, y)``."""
        found = []
        for t in range(xs.shape[0]):
            first, y = f(first, xs[t])
            found.append(y)
        return first, torch.stack(found)

    def cummax(self, v: Any, axis: int) -> Any:
        """The largest so far."""
        return torch.cummax(v, axis)[0]

    def places(self, v: Any, x: Any) -> Any:
        """How many of the sorted numbers are not above each."""
        return torch.searchsorted(v, x, right=True)


class _Compiled(_Torch):
    """As PyTorch compiles: derivatives by ``torch.func``."""

    def graded(self, program: Any, wrt: int) -> Callable[..., Any]:
        def both(*xs: Any) -> Any:
            value = torch.func.grad_and_value(self.called(program), tuple(range(wrt)))
            slopes, own = value(*xs)
            return [own, *slopes]

        return both


class _Jax(_Names):
    module = jnp

    def graded(self, program: Any, wrt: int) -> Callable[..., Any]:
        """Value and gradients by the first ``wrt`` operands."""

        def both(*xs: Any) -> Any:
            value, slopes = jax.value_and_grad(self.called(program), tuple(range(wrt)))(*xs)
            return [value, *slopes]

        return both

    def log_softmax(self, v: Any, axis: int) -> Any:
        """Logarithms of a softmax."""
        return jax.nn.log_softmax(v, axis)

    def softmax(self, v: Any, axis: int) -> Any:
        """Exponentials over their sum."""
        return jax.nn.softmax(v, axis)

    def softplus(self, v: Any) -> Any:
        """log(1 + exp(v))."""
        return jax.nn.softplus(v)

    def sigmoid(self, v: Any) -> Any:
        """The logistic function."""
        return jax.nn.sigmoid(v)

    def elu(self, v: Any) -> Any:
        """v, or exp(v) - 1 below 0."""
        return jax.nn.elu(v)

    def stop(self, v: Any) -> Any:
        """A value without gradient."""
        return jax.lax.stop_gradient(v)

    def slope(self, f: Any, x: Any) -> Any:
        """The gradient of a sum by what is summed over, which has gradients itself."""
        return jax.grad(lambda v: f(v).sum())(x)

    def segment_sum(self, v: Any, i: Any, n: int) -> Any:
        """The sums of what has equal numbers."""
        return jax.ops.segment_sum(v, i, n)

    def rsqrt(self, v: Any) -> Any:
        """One over the root."""
        return jax.lax.rsqrt(v)

    def logsumexp(self, v: Any, axis: int) -> Any:
        """The logarithm of a sum of exponentials."""
        return jax.nn.logsumexp(v, axis)

    def take_along(self, v: Any, i: Any, axis: int) -> Any:
        """Elements at places along an axis."""
        return jnp.take_along_axis(v, i, axis)

    def topk(self, v: Any, k: int) -> Any:
        """The largest of rows, and their places."""
        return jax.lax.top_k(v, k)

    def bincount(self, v: Any, n: int) -> Any:
        """How often each of ``n`` numbers comes."""
        return jnp.bincount(v, length=n)

    def conv(self, x: Any, w: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        """Correlation of images with filters."""
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), ((pad, pad), (pad, pad)), feature_group_count=groups
        )

    def put(self, v: Any, at: Any, new: Any) -> Any:
        """An array with new entries at places."""
        return v.at[at].set(new)

    def scan(self, f: Any, first: Any, xs: Any) -> Any:
        """The last carry, and what each step gives, of ``f(carry, x) -> (carry, y)``."""
        return jax.lax.scan(f, first, xs)

    def cummax(self, v: Any, axis: int) -> Any:
        """The largest so far."""
        return jax.lax.cummax(v, axis)

    def places(self, v: Any, x: Any) -> Any:
        """How many of the sorted numbers are not above each."""
        return jnp.searchsorted(v, x, side="right")

    def erf(self, v: Any) -> Any:
        """The error function."""
        return jax.scipy.special.erf(v)

    def erfc(self, v: Any) -> Any:
        """One without the error function."""
        return jax.scipy.special.erfc(v)


OURS = _Symdnn()
#: The peers by their names in a :class:`~benchmarks.cpu.nest.Nest`.
THEIRS = (("torch", _Torch()), ("compiled", _Compiled()), ("jax", _Jax()))

Make = Callable[[], Any]


def floats(
    *shape: int, seed: int = 0, dtype: str = "float32", low: float = -1, high: float = 1
) -> Make:
    def make() -> Any:
        import ml_dtypes  # noqa: F401 (its import names bfloat16 for NumPy)

        drawn = np.random.default_rng(seed).random(shape, "float32") * (high - low) + low
        return np.asarray(drawn.astype(dtype))

    return make


def whole(high: int, *shape: int, seed: int = 1, dtype: str = "int64") -> Make:
    return lambda: np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def mask(*shape: int) -> Make:
    return lambda: np.random.default_rng(5).random(shape, "float32") < 0.7


def number(value: float, dtype: str = "float32") -> Make:
    return lambda: np.array(value, dtype)


def row(name: str, program: Any, *arrays: Make, wrt: int = 0) -> Nest:
    """A row of a program, or of its value and its gradients by the first ``wrt`` operands."""
    if wrt:
        ours, theirs = OURS.graded(program, wrt), {n: m.graded(program, wrt) for n, m in THEIRS}
    else:
        ours, theirs = OURS.called(program), {n: m.called(program) for n, m in THEIRS}
    return Nest(name + ", gradient" * bool(wrt), arrays, ours, static=True, **theirs)
