"""One text for four libraries: the names by which programs of
:mod:`benchmarks.cpu.survey_varied` call each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.nest import F, T, jax, jnp, np, symdnn, torch

__all__ = ["SPACES", "Program", "Rows"]

#: A program of a space and of arrays.
Program = Callable[..., Any]
#: Name, what makes its arrays, program, spaces that lack it, arguments of gradients.
Rows = Iterator[tuple[str, tuple[Any, ...], Program, str, tuple[int, ...]]]


class _Space:
    """NumPy's names in a library, and those that the libraries write in their own ways."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    def softmax(self, x: Any, axis: int = -1) -> Any:
        e = self.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def logsumexp(self, x: Any, axis: int) -> Any:
        top = x.max(axis, keepdims=True)
        return self.log(self.exp(x - top).sum(axis)) + top.squeeze(axis)

    def sigmoid(self, x: Any) -> Any:
        return 1 / (1 + self.exp(-x))

    def erf(self, x: Any) -> Any:
        from scipy import special  # type: ignore[import-untyped]

        return special.erf(x)

    def argsort(self, x: Any, axis: int = -1) -> Any:
        return self._module.argsort(x, axis, kind="stable")

    def added(self, x: Any, at: Any, values: Any) -> Any:
        """``x`` with values added at rows."""
        x = x.copy()
        np.add.at(x, at, values)
        return x

    def put(self, x: Any, at: Any, values: Any) -> Any:
        """``x`` with values set at rows, or at a slice."""
        x = x.copy()
        x[at] = values
        return x

    def window(self, x: Any, n: int, step: int = 1) -> Any:
        """Windows of n numbers of the last axis, as a last axis."""
        return np.lib.stride_tricks.sliding_window_view(x, n, -1)[..., ::step, :]

    def scan(self, step: Program, state: Any, xs: Any) -> Any:
        """All states of ``state = step(state, x)``."""
        found = []
        for x in xs:
            state = step(state, x)
            found.append(state)
        return self.stack(found)

    def layer_norm(self, x: Any, w: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / self.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b

    def gelu(self, x: Any) -> Any:
        return x * 0.5 * (1 + self.erf(x / 2**0.5))


class _Symdnn(_Space):
    def cast(self, x: Any, dtype: str) -> Any:
        return T.cast(x, dtype)

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return T.softmax(x, axis=axis)

    def logsumexp(self, x: Any, axis: int) -> Any:
        return T.logsumexp(x, axis)

    def sigmoid(self, x: Any) -> Any:
        return T.sigmoid(x)

    def erf(self, x: Any) -> Any:
        return T.erf(x)

    def added(self, x: Any, at: Any, values: Any) -> Any:
        return T.inc_subtensor(x[at], values)

    def put(self, x: Any, at: Any, values: Any) -> Any:
        return T.set_subtensor(x[at], values)

    def window(self, x: Any, n: int, step: int = 1) -> Any:
        return T.unfold(x, -1, n, step)

    def scan(self, step: Program, state: Any, xs: Any) -> Any:
        return symdnn.scan(lambda x, s: step(s, x), sequences=[xs], outputs_info=[state])[0]

    def layer_norm(self, x: Any, w: Any, b: Any) -> Any:
        return T.nnet.layer_norm(x, w, b)

    def gelu(self, x: Any) -> Any:
        return T.gelu(x)

    def conv(self, x: Any, w: Any, **more: Any) -> Any:
        of = symdnn.nn.functional
        return (of.conv1d if x.ndim == 3 else of.conv2d)(x, w, **more)


class _Jax(_Space):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return jax.nn.softmax(x, axis)

    def logsumexp(self, x: Any, axis: int) -> Any:
        return jax.nn.logsumexp(x, axis)

    def sigmoid(self, x: Any) -> Any:
        return jax.nn.sigmoid(x)

    def erf(self, x: Any) -> Any:
        return jax.scipy.special.erf(x)

    def argsort(self, x: Any, axis: int = -1) -> Any:
        return jnp.argsort(x, axis, stable=True)

    def added(self, x: Any, at: Any, values: Any) -> Any:
        return x.at[at].add(values)

    def put(self, x: Any, at: Any, values: Any) -> Any:
        return x.at[at].set(values)

    def window(self, x: Any, n: int, step: int = 1) -> Any:
        return x[..., jnp.arange(0, x.shape[-1] - n + 1, step)[:, None] + jnp.arange(n)]

    def scan(self, step: Program, state: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda s, x: (step(s, x),) * 2, state, xs)[1]

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def conv(self, x: Any, w: Any, stride: int = 1, padding: int = 0, dilation: int = 1,
             groups: int = 1) -> Any:  # fmt: skip
        n = x.ndim - 2
        return jax.lax.conv_general_dilated(
            x, w, (stride,) * n, [(padding, padding)] * n, rhs_dilation=(dilation,) * n,
            feature_group_count=groups,
        )  # fmt: skip


class _Torch(_Space):
    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return torch.softmax(x, axis)

    def logsumexp(self, x: Any, axis: int) -> Any:
        return torch.logsumexp(x, axis)

    def sigmoid(self, x: Any) -> Any:
        return torch.sigmoid(x)

    def erf(self, x: Any) -> Any:
        return torch.erf(x)

    def argsort(self, x: Any, axis: int = -1) -> Any:
        return torch.argsort(x, dim=axis, stable=True)

    def sort(self, x: Any, axis: int = -1) -> Any:
        return torch.sort(x, axis)[0]

    def flip(self, x: Any, axis: int) -> Any:
        return torch.flip(x, (axis,))

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def take_along_axis(self, x: Any, at: Any, axis: int) -> Any:
        return torch.take_along_dim(x, at, axis)

    def diff(self, x: Any, axis: int = -1) -> Any:
        return torch.diff(x, dim=axis)

    def repeat(self, x: Any, n: int, axis: int) -> Any:
        return torch.repeat_interleave(x, n, axis)

    def pad(self, x: Any, widths: Any, mode: str = "constant") -> Any:
        flat = [n for pair in reversed(widths) for n in pair]
        if mode == "constant":
            return F.pad(x, flat)
        while len(flat) > 2 and flat[-2:] == [0, 0]:  # a mode takes the last axes alone
            flat = flat[:-2]
        mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
        more = max(0, len(flat) // 2 + 1 - x.ndim)
        found = F.pad(x[(None,) * more], flat, mode=mode)
        return found[(0,) * more]

    def added(self, x: Any, at: Any, values: Any) -> Any:
        at = at if isinstance(at, tuple) else (at,)
        return x.index_put(at, values, accumulate=True)

    def put(self, x: Any, at: Any, values: Any) -> Any:
        x = x.clone()
        x[at] = values
        return x

    def window(self, x: Any, n: int, step: int = 1) -> Any:
        return x.unfold(-1, n, step)

    def layer_norm(self, x: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x, w.shape, w, b)

    def gelu(self, x: Any) -> Any:
        return F.gelu(x)

    def conv(self, x: Any, w: Any, **more: Any) -> Any:
        return (F.conv1d if x.ndim == 3 else F.conv2d)(x, w, **more)


SPACES = {
    "symdnn": _Symdnn(T), "torch": _Torch(torch), "jax": _Jax(jnp), "numpy": _Space(np),
}  # fmt: skip
