"""The processes of speed_gpu.py: each runs one side, and answers questions on its standard input.

A process that prepares a row has the card's lock while it measures algorithms, so that no two of
them do at once. Nothing is prepared while rows are timed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SETTLING, SECONDS, MOST_CALLS = 0.05, 0.05, 300

#: A call, what waits for it, and its result as an array of float64.
Made = tuple[Callable[[], Any], Callable[[], None], Callable[[Any], np.ndarray]]
#: The ways to call a prepared row, by the peer's name; each is made when it is asked for.
Ways = dict[str, Callable[[], Made]]


class Card(contextlib.AbstractContextManager[None]):
    """The lock of the card, among processes; a process may take it again inside of itself."""

    def __init__(self, folder: str) -> None:
        self.file, self.depth = os.open(f"{folder}/card.lock", os.O_CREAT | os.O_RDWR), 0

    def __enter__(self) -> None:
        if self.depth == 0:
            fcntl.flock(self.file, fcntl.LOCK_EX)
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            fcntl.flock(self.file, fcntl.LOCK_UN)


def given(folder: str, name: str, batch: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs and the wanted result."""
    data = np.load(f"{folder}/{name}-b{batch}.npz")
    return [data[f"i{k}"] for k in range(len(data.files) - 1)], data["wanted"]


def symdnn_side(device: str, folder: str, card: Card) -> Callable[..., Ways]:
    from benchmarks.gpu.device import Device, set_flags

    set_flags(device == "cuda")
    import symdnn
    import symdnn.onnx
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    place = Device(device == "cuda")
    if device == "cuda":
        measured_alone(card)

    def make(name: str, batch: int, dtype: str) -> Made:
        place.cleanup()
        graph = symdnn.onnx.load(f"{folder}/{name}.onnx", batch=batch, dtype=dtype)
        ins = [symdnn.In(v, borrow=True) for v in graph.variables.values()]
        out = symdnn.Out(next(iter(graph.expressions.values())), borrow=True)
        f = symdnn.function(ins, out)
        kind = symdnn_dtype(dtype)
        arrays, _ = given(folder, name, batch)
        values = [place.put(a.astype(kind) if a.dtype.kind == "f" else a) for a in arrays]
        return lambda: f(*values), place.sync, place.get

    return lambda *row: {"symdnn": lambda: make(*row)}


def measured_alone(card: Card) -> None:
    """Let symdnn take times of kernels only while this process has the card."""
    from symdnn.gpu.device.clock import Clock

    def alone(method: Callable[..., float]) -> Callable[..., float]:
        def call(*args: Any) -> float:
            with card:
                return method(*args)

        return call

    for name in ("time", "elapsed_ms"):
        setattr(Clock, name, alone(getattr(Clock, name)))


def torch_side(device: str, folder: str, card: Card, kinds: list[str]) -> Callable[..., Ways]:
    """PyTorch by some of ``eager``, ``graph`` and ``compile``, which share a network."""
    import torch
    from timed import network

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    if device == "cuda":  # cuDNN and cuBLAS begin before there is a row
        torch.nn.functional.conv2d(torch.ones(1, 8, 8, 8).cuda(), torch.ones(8, 8, 3, 3).cuda())
        torch.ones(8, 8).cuda() @ torch.ones(8, 8).cuda()

    def ways(name: str, batch: int, dtype: str) -> Ways:
        torch._dynamo.reset()
        kind = getattr(torch, dtype)
        net = prepared(network(name)[0], device, kind)
        values = []
        for a in given(folder, name, batch)[0]:
            v = torch.from_numpy(a).to(device)
            if a.dtype.kind == "f":
                v = v.to(kind)
                v = v.to(memory_format=torch.channels_last) if v.ndim == 4 else v
            values.append(v)

        def made(how: str) -> Made:
            run = net
            if how == "compile":
                run = torch.compile(net, mode="reduce-overhead", dynamic=False)

            def call() -> Any:
                with torch.no_grad():
                    return run(*values)

            if how == "graph" and device == "cuda":
                with card:
                    call = captured(call)
            elif how == "eager":
                with card:
                    call()
            return call, sync, lambda y: y.double().cpu().numpy()

        return {k: lambda k=k: made(k) for k in kinds}

    return ways


def prepared(net: Any, device: str, kind: Any) -> Any:
    """The network on the device, with channels last and PyTorch's fused attention."""
    import torch

    if hasattr(net, "inner"):
        net.inner.set_attn_implementation("sdpa")
    return net.to(device, kind, memory_format=torch.channels_last)


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def exports(device: str, folder: str, names: list[str], batches: list[int]) -> None:
    """Writes NAME.onnx, and NAME-bBATCH.npz with inputs and the result in float32."""
    import torch
    from timed import export, network

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in names:
        if all(Path(f"{folder}/{name}-b{b}.npz").exists() for b in batches):
            continue
        if not Path(f"{folder}/{name}.npz").exists():  # it is written last
            export(Path(folder), name)
        net, args = network(name)
        net.to(device)
        for batch in batches:
            path = f"{folder}/{name}-b{batch}.npz"
            values = [drawn(a, batch) for a in args]
            with torch.no_grad():
                wanted = net(*(v.to(device) for v in values)).cpu().numpy()
            arrays = {f"i{k}": v.numpy() for k, v in enumerate(values)}
            np.savez(f"{path}.part.npz", wanted=wanted, **arrays)
            os.rename(f"{path}.part.npz", path)


def drawn(example: Any, batch: int) -> Any:
    """A batch like the input of an export: images, words, or a mask of ones."""
    import torch

    shape = (batch, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape)
    if bool((example == 1).all()):
        return torch.ones(shape, dtype=example.dtype)
    return torch.randint(3, int(example.max()) + 1, shape)


def child(kinds: str, device: str, folder: str) -> None:
    """Answers a line of JSON by one: ``[name, batch, dtype]`` prepares, ``[]`` times."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print goes to the errors
    sys.path.insert(0, str(ROOT))
    card = Card(folder)
    if kinds == "symdnn":
        side = symdnn_side(device, folder, card)
    else:
        side = torch_side(device, folder, card, kinds.split("+"))
    made: dict[str, Made] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if question:
            made.clear()
            found = begun(side, folder, question, made)
        else:
            found = {k: tried(timed_calls, *m[:2]) for k, m in made.items()}
        print(json.dumps(found), file=answers, flush=True)


def tried(f: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """The result, or the error as a record."""
    try:
        return f(*args)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def begun(
    side: Callable[..., Ways], folder: str, question: list[Any], made: dict[str, Made]
) -> dict[str, Any]:
    """How far each way's first result is off, and the seconds to it; ``made`` gets the calls."""
    found: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        ways = side(*question)
    except Exception as error:
        return {"every": {"error": f"{type(error).__name__}: {str(error)[:300]}"}}
    wanted = given(folder, *question[:2])[1].astype(np.float64)

    def first(kind: str) -> dict[str, Any]:
        call, _, get = m = ways[kind]()
        y = get(call())
        seconds = time.perf_counter() - start
        made[kind] = m
        off = float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))
        return {"off": off, "first_s": round(seconds, 2)}

    for kind in ways:
        found[kind] = tried(first, kind)
    return found


def timed_calls(call: Callable[[], Any], sync: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of calls that are each waited for (median), and of calls in a row (mean)."""
    seconds: list[float] = []
    settled = time.perf_counter() + SETTLING
    while time.perf_counter() < settled:
        call()
        sync()
    end = time.perf_counter() + SECONDS
    while len(seconds) < 5 or (time.perf_counter() < end and len(seconds) < MOST_CALLS):
        sync()
        start = time.perf_counter()
        call()
        sync()
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in seconds:
        call()
    sync()
    row = (time.perf_counter() - start) / len(seconds)
    return {"ms": 1e3 * statistics.median(seconds), "row_ms": 1e3 * row}
