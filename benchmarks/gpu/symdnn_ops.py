"""Single operations over a ring of inputs that is larger than the card's cache."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from benchmarks.gpu import symdnn_nets
from benchmarks.gpu.device import Device
from benchmarks.workloads import pspec

_RING_BYTES = 300e6


class Operation:
    """One operation of ``symdnn_nets``, and with ``backward`` its gradients, on random inputs.

    ``shape`` is that of x in NCHW order, also where ``layout`` is ``nhwc``. After
    :meth:`prepare`, ``calls`` are to be made in turn; each has another input.
    """

    def __init__(
        self, device: Device, op: str, shape: tuple[int, ...], dtype: str, layout: str,
        backward: bool, tiny: bool,
    ) -> None:  # fmt: skip
        self.device, self.name, self.layout, self.backward = device, op, layout, backward
        self.dtype = symdnn_nets.symdnn_dtype(dtype)
        self.build: Any = getattr(symdnn_nets, op)
        if op.startswith("batch_norm"):
            self.build = partial(self.build, channels=shape[1])
        self.nhwc = layout == "nhwc"
        self.shape = (shape[0], *shape[2:], shape[1]) if self.nhwc else shape
        self.y_shape = self._result_shape()
        nbytes = float(np.prod(shape)) * self.dtype.itemsize
        self.count = 2 if tiny else max(2, int(min(16, _RING_BYTES / nbytes)))
        self.functions: list[Any] = []
        self.calls: list[Callable[[], Any]] = []

    def _result_shape(self) -> tuple[int, ...]:
        if self.name != "pooled":
            return self.shape
        at = (1, 2) if self.nhwc else (2, 3)
        return tuple((n - 1) // 2 + 1 if i in at else n for i, n in enumerate(self.shape))

    def prepare(self, shared: bool) -> dict[str, Any]:
        """Compile, and make each call once: ``first_s``, and ``relerr`` of y against float64.

        The inputs are arguments, or where ``shared`` the functions' own.
        """
        xs = self._ring(self.shape, 11)
        inputs: list[list[Any]]
        if shared:
            held = [symdnn.shared(x) for x in xs]
            inputs = [[] for _ in xs]
        else:
            inputs = [[self.device.put(x)] for x in xs]
        if self.backward:
            dys = self._ring(self.y_shape, 12)
            inputs = [[*given, self.device.put(dy)] for given, dy in zip(inputs, dys, strict=True)]
        self.device.sync()
        begin = time.perf_counter()
        if shared:
            first = self._function(held[0])
            self.functions = [first, *(first.copy(swap={held[0]: s}) for s in held[1:])]
        else:
            name = self.dtype.name
            self.functions = [self._function(T.TensorType(name, (None,) * len(self.shape))("x"))]
        many = itertools.cycle(self.functions)
        self.calls = [partial(next(many), *given) for given in inputs]
        out = self.calls[0]()
        self.device.sync()
        record = {"first_s": time.perf_counter() - begin}
        record["relerr"] = self._error(self.device.get(out[0] if self.backward else out), xs[0])
        return record

    def _function(self, x: Any) -> Any:
        return symdnn_nets.op_function(self.build, x, self.backward, self.layout)

    def _ring(self, shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
        """``count`` arrays, four different ones at most: drawing them takes long."""
        rng = np.random.default_rng(seed)
        draw = [rng.standard_normal(shape, np.float32) for _ in range(min(self.count, 4))]
        return [draw[i % len(draw)].astype(self.dtype) for i in range(self.count)]

    def _error(self, y: np.ndarray, x: np.ndarray) -> float:
        """Relative to the norm, on the part of y that :func:`expected` gives."""
        if self.nhwc:
            x, y = (a.transpose(0, 3, 1, 2) for a in (x, y))
        part, wanted = expected(self.name, x)
        return float(np.linalg.norm(y[part] - wanted) / np.linalg.norm(wanted))


def expected(name: str, x: np.ndarray) -> tuple[Any, np.ndarray]:
    """(index of a part of y, its values in float64) of an operation on x in NCHW order."""
    if name.startswith("batch_norm"):
        rng = np.random.default_rng(3)
        g, b = (rng.standard_normal(x.shape[1], np.float32) for _ in range(2))
        c = x[:, :1].astype(np.float64)
        y = (c - c.mean()) / np.sqrt(c.var() + 1e-5) * float(g[0]) + float(b[0])
        return np.s_[:, :1], np.maximum(y, 0) if name.endswith("relu") else y
    if name == "chain":
        part: Any = np.s_[:100000]
        v, e = x[part].astype(np.float64), pspec.EW
        gate = 1 / (1 + np.exp(-e["c"] * v))
        return part, np.tanh(e["a"] * v + e["b"]) * gate + np.maximum(v - e["d"], 0)
    part = np.s_[:2]
    v = x[part].astype(np.float64)
    if name == "pooled":
        v = np.pad(v, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(v, (3, 3), axis=(2, 3))
        return part, windows[:, :, ::2, ::2].max(axis=(-2, -1))
    v = np.exp(v - v.max(axis=1, keepdims=True))
    return part, v / v.sum(axis=1, keepdims=True)
