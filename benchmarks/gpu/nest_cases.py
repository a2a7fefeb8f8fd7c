"""Memory-bound ops as users write them in symdnn and in PyTorch; cases of ``benchmarks.gpu.nest``.

A case has the arrays of its inputs, the graph in either library, and what the results' rows are in
float64. With ``wrt`` it is the gradient in these inputs, whose cotangent is the last array, or of a
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["WORKLOADS", "Workload"]

_BOTH = ("float32", "bfloat16")
_VOCABULARY = 50304


@dataclass(frozen=True)
class Workload:
    """A case. ``shape`` is what ``arrays(rng, shape, dtype)`` makes of.

    ``rows(chosen, arrays)`` are the float64 values of the results' chosen rows; None: not checked.
    """

    name: str
    shape: tuple[int, ...]
    arrays: Callable[..., list[np.ndarray]]
    symdnn: Callable[..., Any]
    torch: Callable[..., Any]
    rows: Callable[..., list[Any]]
    dtypes: tuple[str, ...] = _BOTH
    wrt: tuple[int, ...] = ()
    cotangent: bool = False
    light: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The case's name."""
        return f"{self.name} {'x'.join(map(str, self.shape))}"

    def small(self) -> Workload:
        """The same with short axes."""
        return replace(self, shape=tuple(min(n, 96) for n in self.shape))


def _drawn(rng: Any, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Normal numbers; long arrays repeat a part."""
    size = int(np.prod(shape))
    part = rng.standard_normal(min(size, (1 << 20) + 7), np.float32).astype(dtype)
    return np.resize(part, size).reshape(shape)


def _of(count: int) -> Callable[..., list[np.ndarray]]:
    """``count`` arrays of the case's shape."""
    return lambda rng, shape, dtype: [_drawn(rng, shape, dtype) for _ in range(count)]


# -- operands that lie across each other ----------------------------------------------------------


def _with_transposed(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    *lead, m, n = shape
    return [_drawn(rng, shape, dtype), _drawn(rng, (*lead, n, m), dtype)]


def _moved(order: tuple[int, ...]) -> dict[str, Any]:
    """Twice an array with its axes in this order; as rows, so that it cannot be a view."""
    return {
        "arrays": _of(1),
        "symdnn": lambda T, x: [(2 * x.dimshuffle(*order)).reshape((x.shape[0], -1))],
        "torch": lambda torch, x: [(2 * x.permute(order)).reshape(x.shape[0], -1)],
        "rows": lambda some, x: [(2 * x.transpose(*order)[some]).reshape(len(some), -1)],
    }


TRANSPOSED = [
    Workload(
        "x + y.T", (8192, 8192), _with_transposed,
        lambda T, x, y: [x + y.T],
        lambda torch, x, y: [x + y.T],
        lambda some, x, y: [x[some] + y[:, some].T],
    ),
    Workload(
        "tanh(x) * y.mT", (64, 1024, 1000), _with_transposed,
        lambda T, x, y: [T.tanh(x) * y.dimshuffle(0, 2, 1)],
        lambda torch, x, y: [torch.tanh(x) * y.mT],
        lambda some, x, y: [np.tanh(x[some]) * y[some].transpose(0, 2, 1)],
    ),
    Workload(
        "copy of x.T", (8192, 8192), _of(1),
        lambda T, x: [x.T.reshape((-1,))],
        lambda torch, x: [x.T.reshape(-1)],
        lambda some, x: [x[some % len(x), some // len(x)]],
    ),
    Workload("2 * NHWC to NCHW", (256, 56, 56, 64), **_moved((0, 3, 1, 2))),
    Workload("2 * heads apart", (32, 1024, 16, 64), **_moved((0, 2, 1, 3))),
]  # fmt: skip


# -- wide rows ------------------------------------------------------------------------------------


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _log_likelihood(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    top = x.max(-1, keepdims=True)
    logs = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    return logs[np.arange(len(x)), labels]


def _logits(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    return [_drawn(rng, shape, dtype), rng.integers(0, shape[1], shape[0])]


def _label_gradient(some: Any, x: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    found = _softmax(x[some])
    found[np.arange(len(found)), labels[some]] -= 1
    return [found / len(x)]


def _mean_loss(torch: Any, x: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(x, labels)


def _picked(T: Any, x: Any, labels: Any) -> Any:
    logs = T.log(T.nnet.softmax(x.astype("float32")))
    return -logs[T.arange(x.shape[0]), labels].mean()


def _masked(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    return [_drawn(rng, shape, dtype), rng.random((shape[0], 1, *shape[2:])) < 0.8]


def _masked_rows(some: Any, x: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    return [_softmax(np.where(mask[some], x[some], -1e9))]


WIDE = [
    Workload(
        "softmax", (8192, _VOCABULARY), _of(1),
        lambda T, x: [T.nnet.softmax(x)],
        lambda torch, x: [torch.softmax(x, 1)],
        lambda some, x: [_softmax(x[some])],
    ),
    Workload(
        "crossentropy", (8192, _VOCABULARY), _logits,
        lambda T, x, y: [T.nnet.categorical_crossentropy(T.nnet.softmax(x), y)],
        lambda torch, x, y: [torch.nn.functional.cross_entropy(x, y, reduction="none")],
        lambda some, x, y: [-_log_likelihood(x[some], y[some])],
    ),
    Workload(
        "crossentropy, gradient", (8192, _VOCABULARY), _logits,
        lambda T, x, y: T.nnet.categorical_crossentropy(T.nnet.softmax(x), y).mean(),
        _mean_loss, _label_gradient, wrt=(0,),
    ),
    Workload(
        "log(p)[arange, y] in float32, grad", (8192, _VOCABULARY), _logits, _picked,
        lambda torch, x, y: _mean_loss(torch, x.float(), y), _label_gradient, ("bfloat16",), (0,),
    ),
    Workload(
        "masked softmax", (8, 16, 1024, 1024), _masked,
        lambda T, x, mask: [T.nnet.softmax(T.switch(mask, x, np.asarray(-1e9, x.dtype)), axis=3)],
        lambda torch, x, mask: [torch.softmax(torch.where(mask, x, -1e9), 3)],
        _masked_rows,
    ),
]  # fmt: skip


# -- norms and gates ------------------------------------------------------------------------------


def _rms_inputs(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    x, g, dy = (_drawn(rng, s, dtype) for s in (shape, shape[1:], shape))
    return [x, g, dy]


def _rms(T: Any, x: Any, gain: Any, *dy: Any) -> Any:
    wide = x.astype("float32")
    normal = wide / T.sqrt(T.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-5))
    return normal.astype(x.dtype) * gain


def _torch_rms(torch: Any, x: Any, gain: Any, *dy: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * gain


def _rms_rows(some: Any, x: np.ndarray, gain: np.ndarray, dy: np.ndarray) -> list[Any]:
    x = x[some]
    return [x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain]


def _rms_gradient(some: Any, x: np.ndarray, gain: np.ndarray, dy: np.ndarray) -> list[Any]:
    x, d = x[some], dy[some] * gain
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return [scale * (d - x * scale**2 * (d * x).mean(-1, keepdims=True)), None]


def _gated(T: Any, x: Any) -> list[Any]:
    half = x.shape[1] // 2
    return [x[:, :half] * T.nnet.gelu(x[:, half:])]


def _torch_gated(torch: Any, x: Any) -> list[Any]:
    a, b = x.chunk(2, 1)
    return [a * torch.nn.functional.gelu(b)]


def _gated_rows(some: Any, x: np.ndarray) -> list[np.ndarray]:
    from scipy.special import erf

    a, b = np.split(x[some], 2, 1)
    return [a * b * 0.5 * (1 + erf(b / np.sqrt(2)))]


NORMS = [
    Workload(
        "rms norm", (16384, 4096), _rms_inputs, lambda T, *v: [_rms(T, *v)],
        lambda torch, *v: [_torch_rms(torch, *v)], _rms_rows,
    ),
    Workload(
        "rms norm, gradient", (16384, 4096), _rms_inputs, _rms, _torch_rms, _rms_gradient,
        wrt=(0, 1), cotangent=True,
    ),
    Workload("geglu", (32768, 8192), _of(1), _gated, _torch_gated, _gated_rows),
]  # fmt: skip


# -- rows and elements by index -------------------------------------------------------------------


def _table(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    count, rows, width = shape
    return [
        _drawn(rng, (rows, width), dtype), rng.integers(0, rows, count),
        _drawn(rng, (count, width), dtype) / np.asarray(4, dtype),
    ]  # fmt: skip


def _sums_by_row(some: Any, table: np.ndarray, index: np.ndarray, y: np.ndarray) -> list[Any]:
    return [np.stack([y[index == row].sum(0) for row in some])]


def _elements(rng: Any, shape: Any, dtype: Any) -> list[np.ndarray]:
    (n,) = shape
    return [_drawn(rng, (n,), dtype), rng.integers(0, n, n), _drawn(rng, (n,), dtype)]


def _element_sums(some: Any, x: np.ndarray, index: np.ndarray, y: np.ndarray) -> list[Any]:
    return [x[some] + np.array([y[index == at].sum() for at in some])]


BY_INDEX = [
    Workload(
        "embedding", (16384, _VOCABULARY, 768), _table,
        lambda T, table, index, y: [table[index]],
        lambda torch, table, index, y: [torch.nn.functional.embedding(index, table)],
        lambda some, table, index, y: [table[index[some]]], light=(0, 2),
    ),
    Workload(
        "embedding, gradient", (16384, _VOCABULARY, 768), _table,
        lambda T, table, index, y: table[index],
        lambda torch, table, index, y: torch.nn.functional.embedding(index, table),
        _sums_by_row, wrt=(0,), cotangent=True, light=(0,),
    ),
    Workload(
        "rows incremented", (16384, _VOCABULARY, 768), _table,
        lambda T, table, index, y: [T.inc_subtensor(table[index], y)],
        lambda torch, table, index, y: [table.index_add(0, index, y)],
        lambda some, *v: [v[0][some] + _sums_by_row(some, *v)[0]],
    ),
    Workload(
        "elements gathered", (1 << 24,), _elements,
        lambda T, x, index, y: [x[index]],
        lambda torch, x, index, y: [x[index]],
        lambda some, x, index, y: [x[index[some]]], ("float32",),
    ),
    Workload(
        "elements added", (1 << 22,), _elements,
        lambda T, x, index, y: [T.inc_subtensor(x[index], y)],
        lambda torch, x, index, y: [x.index_add(0, index, y)], _element_sums, ("float32",),
    ),
]  # fmt: skip


# -- sorts ----------------------------------------------------------------------------------------


def _ordered(some: Any, x: np.ndarray) -> list[np.ndarray]:
    return [np.sort(x[some], -1)]


def _order(some: Any, x: np.ndarray) -> list[np.ndarray]:
    return [np.argsort(x[some], -1, kind="stable")]


SORTS = [
    *(
        Workload(
            "sort", shape, _of(1), lambda T, x: [T.sort(x, axis=1)],
            lambda torch, x: [torch.sort(x, 1)[0]], _ordered,
        )
        for shape in ((16384, 1024), (4, 1 << 22))
    ),
    *(
        Workload(
            "argsort", shape, _of(1), lambda T, x: [T.argsort(x, axis=1)],
            lambda torch, x: [torch.sort(x, dim=1, stable=True)[1]], _order, ("float32",),
        )
        for shape in ((4096, 8192), (1, 1 << 24))
    ),
]  # fmt: skip

WORKLOADS = [*TRANSPOSED, *WIDE, *NORMS, *BY_INDEX, *SORTS]
