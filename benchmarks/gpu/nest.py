"""Nests on a GPU beside PyTorch: arg-reductions, scans and top-k of large arrays.

``python -m benchmarks.gpu.nest`` prints for each case the milliseconds of symdnn, of PyTorch eager,
and of a copy that moves as many bytes; ``--tiny`` checks the results of small ones anywhere. Arrays
are larger than the card's cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.device import Device, set_flags

__all__ = ["CASES", "Case", "main"]

_DTYPES = ("float32", "bfloat16")


class Case(NamedTuple):
    """An op by name, the shape of its operand, its axis, and ``k``."""

    op: str
    shape: tuple[int, ...]
    axis: int
    k: int = 0

    @property
    def id(self) -> str:
        """The case's name."""
        k = f" k={self.k}" if self.k else ""
        return f"{self.op} {'x'.join(map(str, self.shape))} axis {self.axis}{k}"


CASES = [
    Case("argmax", (4096, 50304), 1), Case("argmax", (4096, 50304), 0),
    Case("argmax", (1024, 1 << 20), 1), Case("argmax", (1 << 28,), 0),
    Case("argmax_of_product", (4096, 50304), 1),
    Case("cumsum", (4096, 8192), 1), Case("cumsum", (4096, 8192), 0),
    Case("cumsum_reversed", (4096, 8192), 1), Case("cumsum", (1 << 25,), 0),
    Case("cummax", (4096, 8192), 1),
    *(Case("topk", (4096, 50304), 1, k) for k in (1, 5, 50)), Case("topk", (8, 1 << 22), 1, 50),
]  # fmt: skip


def _symdnn(case: Case, x: Any) -> list[Any]:
    import symdnn.tensor as T

    if case.op == "topk":
        return list(T.topk_and_argtopk(x, case.k, axis=case.axis))
    if case.op == "cumsum_reversed":
        return [T.cumsum(x[:, ::-1], axis=case.axis)[:, ::-1]]
    if case.op == "argmax_of_product":
        return [T.argmax(x * x, axis=case.axis)]
    return [getattr(T, case.op)(x, axis=case.axis)]


def _torch(case: Case, x: Any) -> list[Any]:
    import torch

    if case.op == "topk":
        return list(torch.topk(x, case.k, dim=case.axis))
    if case.op == "cumsum_reversed":
        return [torch.flip(torch.cumsum(torch.flip(x, [case.axis]), case.axis), [case.axis])]
    if case.op == "argmax_of_product":
        return [torch.argmax(x * x, case.axis)]
    found = getattr(torch, case.op)(x, case.axis)
    return [found[0] if case.op == "cummax" else found]


def _wrong(case: Case, x: np.ndarray, results: list[np.ndarray]) -> str:
    """What is wrong with results, by NumPy on some lines; empty if nothing is."""
    lines = np.moveaxis(x, case.axis, -1).reshape(-1, x.shape[case.axis])
    some = np.linspace(0, len(lines) - 1, min(len(lines), 4)).astype(int)
    own = lines[some].astype(np.float32)
    found = [
        np.moveaxis(r, case.axis, -1).reshape(len(lines), -1)[some]
        if r.ndim == x.ndim
        else r.reshape(-1)[some]
        for r in results
    ]
    if case.op == "topk":
        order = np.argsort(-own, axis=-1, kind="stable")[:, : case.k]
        right = np.array_equal(found[1], order)
        right &= np.array_equal(found[0].astype(np.float32), np.take_along_axis(own, order, -1))
    elif case.op.startswith("argmax"):
        own = (own * own).astype(x.dtype) if case.op == "argmax_of_product" else own
        right = np.array_equal(found[0], np.argmax(own.astype(np.float32), -1))
    else:
        back = own[:, ::-1] if case.op == "cumsum_reversed" else own
        wanted = np.maximum if case.op == "cummax" else np.add
        sums = wanted.accumulate(back.astype(np.float64), axis=-1)
        sums = sums[:, ::-1] if case.op == "cumsum_reversed" else sums
        scale = 1e-5 if x.dtype == np.float32 else 1e-2
        bound = scale * np.abs(own).cumsum(-1).max()
        right = bool(np.abs(found[0].astype(np.float64) - sums).max() <= bound)
    return "" if right else "WRONG"


def _measured(device: Device, case: Case, dtype: str, torch: Any) -> str:
    import symdnn
    import symdnn.tensor as T
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    rng = np.random.default_rng(1)
    block = rng.standard_normal(1 << 20, np.float32)
    size = int(np.prod(case.shape))
    x = np.resize(block, size) if size <= 1 << 26 else np.tile(block, -(-size // len(block)))[:size]
    x = x.reshape(case.shape).astype(symdnn_dtype(dtype))
    x.reshape(-1)[:: max(size // 97, 1)] += np.ones((), x.dtype)
    v = T.TensorType(dtype, (None,) * x.ndim)("x")
    outs = [symdnn.Out(y, borrow=True) for y in _symdnn(case, v)]
    f = symdnn.function([v], outs)
    given = device.put(x)
    results = [device.host(r) for r in f(given)]
    wrong = _wrong(case, x, results)
    ms = float(device.time(lambda: f(given))["ms"])
    peer, copy = float("nan"), float("nan")
    nbytes = x.nbytes + sum(r.nbytes for r in results)
    if device.on_gpu:
        half = [device.put(np.empty(nbytes // 2, np.uint8)) for _ in range(2)]
        copy = float(device.time(lambda: device.copy(*half, nbytes // 2))["ms"])
        del half
    if torch is not None and device.on_gpu:
        kind = getattr(torch, dtype)
        held = torch.from_numpy(x.view(np.int16) if x.itemsize == 2 else x).cuda().view(kind)
        peer = float(device.time(lambda: _torch(case, held))["ms"])
        del held
    line = f"{case.id:34} {dtype:9} {ms:8.3f} {peer:8.3f} {copy:8.3f}"
    return f"{line}  x torch {peer / ms:5.2f}  of copy {copy / ms:4.2f}  {wrong}"


def _timed(case: Case, dtype: str, measure: Callable[[], str]) -> str:
    try:
        return measure()
    except Exception as error:  # one case must not hide the others
        return f"{case.id:34} {dtype:9} {type(error).__name__}: {str(error)[:120]}"


def main() -> None:
    """Print a line for each case and dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small arrays on the CPU, to check it")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.05, help="timed for about so long each")
    given = parser.parse_args()
    set_flags(not given.tiny)
    device = Device(not given.tiny, given.seconds)
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    print(f"{'case':34} {'dtype':9} {'ms':>8} {'torch':>8} {'copy':>8}")
    begin = time.perf_counter()
    for case in CASES:
        if given.case not in case.id:
            continue
        small = tuple(min(n, 3000 if len(case.shape) == 1 else 700) for n in case.shape)
        one = case._replace(shape=small) if given.tiny else case
        for dtype in _DTYPES:
            print(_timed(one, dtype, lambda c=one, d=dtype: _measured(device, c, d, torch)))  # type: ignore[misc]
            device.cleanup()
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
