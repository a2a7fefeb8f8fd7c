"""Nests on a GPU beside PyTorch: arg-reductions, scans, top-k, and the ops of ``nest_cases``.

``python -m benchmarks.gpu.nest`` prints for each case the milliseconds of symdnn, of PyTorch, of
``torch.compile`` (for the ops of ``nest_cases``, while ``--compile-seconds`` last), and of a copy
that moves as many bytes; ``--tiny`` checks the results of small ones anywhere. Calls in turn go
over arrays that are together larger than the card's cache.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.device import Device, set_flags
from benchmarks.gpu.nest_cases import WORKLOADS, Workload

__all__ = ["CASES", "Case", "main"]

_DTYPES = ("float32", "bfloat16")
#: Arrays of this size in turn do not stay in the cache of an H200, which has 50 MB.
_ROTATED_BYTES = 120_000_000


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


class Peers:
    """PyTorch, and the seconds left for ``torch.compile``."""

    def __init__(self, torch: Any, seconds: float) -> None:
        self.torch, self.seconds = torch, seconds

    def compiled(self, f: Any, call: Callable[[Any], Any]) -> Any:
        """``call`` of the compiled ``f``, run once; None when the time is spent."""
        if self.seconds <= 0:
            return None
        begin = time.perf_counter()
        try:
            fast = self.torch.compile(f)
            call(fast)
            return lambda: call(fast)
        except Exception:
            return None
        finally:
            self.seconds -= time.perf_counter() - begin
            self.torch._dynamo.reset()


def _graph(w: Workload, variables: list[Any]) -> list[Any]:
    """The outputs of a case, or its gradients."""
    import symdnn.tensor as T
    from symdnn import grad

    found = w.symdnn(T, *variables)
    if not w.wrt:
        return list(found)
    wrt = [variables[i] for i in w.wrt]
    if w.cotangent:
        return list(grad(None, wrt, known_grads={found: variables[-1]}))
    return list(grad(found, wrt))


def _peer_call(w: Workload, torch: Any, sets: list[list[Any]]) -> tuple[Any, Any]:
    """What the case is in PyTorch: its function, and the call of that on the arrays in turn."""

    def f(*given: Any) -> Any:
        return w.torch(torch, *given)

    turn = itertools.cycle(sets)

    def call(g: Any) -> Any:
        given = next(turn)
        if not w.wrt:
            return g(*given)
        seed = given[-1] if w.cotangent else None
        return torch.autograd.grad(g(*given), [given[i] for i in w.wrt], seed)

    return f, call


def _put_peer(w: Workload, torch: Any, arrays: list[np.ndarray], on_gpu: bool) -> list[Any]:
    """The arrays as PyTorch's, on the device."""
    found = []
    for i, a in enumerate(arrays):
        narrow = a.dtype.name == "bfloat16"
        t = torch.from_numpy(a.view(np.int16) if narrow else a)
        t = t.cuda() if on_gpu else t
        t = t.view(torch.bfloat16) if narrow else t
        found.append(t.requires_grad_() if i in w.wrt else t)
    return found


def _agree(w: Workload, arrays: list[np.ndarray], results: list[np.ndarray]) -> str:
    """What is wrong with some of the results' rows, against float64."""
    some = np.unique(np.linspace(0, len(results[0]) - 1, 5).astype(int))
    given = [a if a.dtype.kind in "biu" else _Wide(a) for a in arrays]
    for wanted, found in zip(w.rows(some, *given), results, strict=True):
        if wanted is None:
            continue
        got = found[some].astype(np.float64)
        scale = {2: 2.0**-6, 4: 2.0**-14}.get(found.itemsize, 0) * np.abs(wanted).max()
        if got.shape != wanted.shape or not np.abs(got - wanted).max() <= scale:
            return f"WRONG by {np.abs(got - wanted).max():.3g}"
    return ""


class _Wide:
    """An array whose parts are read in float64; only the parts are converted."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, key: Any) -> Any:
        return self.array[key].astype(np.float64)

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.array.astype(np.float64)

    def __mul__(self, other: Any) -> Any:
        return self.array.astype(np.float64) * other

    __rmul__ = __mul__

    def transpose(self, *order: Any) -> Any:
        """The array with its axes in another order."""
        return _Wide(self.array.transpose(*order))


def _static(shape: tuple[int, ...]) -> list[int | None]:
    """The sizes that a network knows: those of rows, and of what broadcasts."""
    known = [n if n == 1 else None for n in shape]
    return [*known[:-1], shape[-1]] if len(shape) > 1 else known


def _workload(device: Device, w: Workload, dtype: str, peers: Peers) -> str:
    import symdnn
    import symdnn.tensor as T
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    arrays = w.arrays(np.random.default_rng(1), w.shape, symdnn_dtype(dtype))
    variables = [T.TensorType(a.dtype.name, _static(a.shape))() for a in arrays]
    outs = [symdnn.Out(y, borrow=True) for y in _graph(w, variables)]
    f = symdnn.function(variables, outs, on_unused_input="ignore")
    moved = sum(a.nbytes for i, a in enumerate(arrays) if i not in w.light)
    sets = [[device.put(a) for a in arrays]]
    results = [device.host(r) for r in f(*sets[0])]
    touched = moved + sum(r.nbytes for r in results)
    count = max(1, -(-_ROTATED_BYTES // touched)) if device.on_gpu else 1
    sets += [[device.put(a) for a in arrays] for _ in range(count - 1)]
    wrong = _agree(w, arrays, results)
    times = [_time_in_turn(device, f, sets)]
    sets.clear()
    torch = peers.torch
    if torch is not None:
        held = [_put_peer(w, torch, arrays, device.on_gpu) for _ in range(count)]
        g, call = _peer_call(w, torch, held)
        times.append(float(device.time(lambda: call(g))["ms"]))
        fast = peers.compiled(g, call)
        times.append(float(device.time(fast)["ms"]) if fast else float("nan"))
        del held, g, call, fast
        if device.on_gpu:
            torch.cuda.empty_cache()
    times += [float("nan")] * (3 - len(times))
    copy = float("nan")
    if device.on_gpu:
        nbytes = (moved + sum(r.nbytes for r in results)) // 2
        half = [device.put(np.empty(nbytes, np.uint8)) for _ in range(2)]
        copy = float(device.time(lambda: device.copy(*half, nbytes))["ms"])
    ms, eager, compiled = times
    line = f"{w.id:46} {dtype:9} {ms:8.3f} {eager:8.3f} {compiled:8.3f} {copy:8.3f}"
    best = np.nanmin([eager, compiled, np.inf])
    return f"{line}  x best {best / ms:5.2f}  of copy {copy / ms:4.2f}  {wrong}"


def _time_in_turn(device: Device, f: Any, sets: list[list[Any]]) -> float:
    """Milliseconds of a call, with the next arrays each time."""
    turn = itertools.cycle(sets)
    return float(device.time(lambda: f(*next(turn)))["ms"])


def _timed(name: str, dtype: str, measure: Callable[[], str]) -> str:
    try:
        return measure()
    except Exception as error:  # one case must not hide the others
        return f"{name:46} {dtype:9} {type(error).__name__}: {str(error)[:120]}"


def _print_workloads(given: Any, device: Device, torch: Any) -> None:
    """A line for each case of ``nest_cases``."""
    print(f"{'case':46} {'dtype':9} {'ms':>8} {'torch':>8} {'compile':>8} {'copy':>8}")
    peers = Peers(torch, given.compile_seconds)
    for w in WORKLOADS:
        one = w.small() if given.tiny else w
        for dtype in w.dtypes:
            if given.case in w.id:
                line = _timed(
                    w.id,
                    dtype,
                    lambda w=one, d=dtype: _workload(device, w, d, peers),  # type: ignore[misc]
                )
                print(line, flush=True)
                device.cleanup()


def _print_nests(given: Any, device: Device, torch: Any) -> None:
    """A line for each arg-reduction, scan and top-k."""
    print(f"{'case':34} {'dtype':9} {'ms':>8} {'torch':>8} {'copy':>8}")
    for case in CASES:
        if given.case not in case.id:
            continue
        small = tuple(min(n, 3000 if len(case.shape) == 1 else 700) for n in case.shape)
        one = case._replace(shape=small) if given.tiny else case
        for dtype in _DTYPES:
            line = _timed(one.id, dtype, lambda c=one, d=dtype: _measured(device, c, d, torch))  # type: ignore[misc]
            print(line, flush=True)
            device.cleanup()


def main() -> None:
    """Print a line for each case and dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small arrays on the CPU, to check it")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.03, help="timed for about so long each")
    parser.add_argument("--compile-seconds", type=float, default=45, help="for torch.compile")
    given = parser.parse_args()
    set_flags(not given.tiny)
    device = Device(not given.tiny, given.seconds, warm_time=0.1)
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    begin = time.perf_counter()
    _print_workloads(given, device, torch)
    _print_nests(given, device, torch)
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
