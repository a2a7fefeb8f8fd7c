"""Time of a call of exported networks on a GPU: symdnn beside PyTorch, with arrays on the card.

python benchmarks/onnx/speed_gpu.py [NAME ...] [--device cuda] [--batches 1 32]
    [--dtypes float32 bfloat16] [--peers graph eager compile] [--budget 235] [--out FILE]

where symdnn, torch, torchvision, timm, transformers and onnx are installed. A process exports the
networks of timed.py with random weights and runs each in float32 without TF32; one process for each
side, all on one card, prepares a row, says how far its result is from that, and is timed in turn
with the others. ``eager`` is PyTorch, ``compile`` is ``torch.compile(mode="reduce-overhead")``,
``graph`` is the eager call captured by hand in a CUDA graph. Images lie with channels last for
PyTorch. float32 may use TF32 on every side. Of a row are printed milliseconds of a call that is
waited for, of one in a loop that is not, and quotients: above 1 symdnn is faster than the peer.
Rows go to ``--out`` as they finish; those that are there are left out, so that the same command
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "vit_b_32", "bert_6",
    "gpt2_6", "llama_8", "swin_t", "regnet_y_400mf", "lstm", "densenet121",
)  # fmt: skip
SETTLING, SECONDS, MOST_CALLS, ROUNDS = 0.3, 0.08, 300, 3
#: A result is wrong that is so many times farther off than the worst peer's, and this besides.
TIMES_OFF, ALSO_OFF = 3.0, 2e-3

#: A call, what waits for it, and its result as an array of float64.
Made = tuple[Callable[[], Any], Callable[[], None], Callable[[Any], np.ndarray]]


def given(folder: str, name: str, batch: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs and the wanted result."""
    data = np.load(f"{folder}/{name}-b{batch}.npz")
    return [data[f"i{k}"] for k in range(len(data.files) - 1)], data["wanted"]


def symdnn_side(device: str, _how: str) -> Callable[..., Made]:
    from benchmarks.gpu.device import Device, set_flags

    set_flags(device == "cuda")
    import symdnn
    import symdnn.onnx
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    place = Device(device == "cuda")

    def make(folder: str, name: str, batch: int, dtype: str) -> Made:
        place.cleanup()
        graph = symdnn.onnx.load(f"{folder}/{name}.onnx", batch=batch, dtype=dtype)
        ins = [symdnn.In(v, borrow=True) for v in graph.variables.values()]
        out = symdnn.Out(next(iter(graph.expressions.values())), borrow=True)
        f = symdnn.function(ins, out)
        kind = symdnn_dtype(dtype)
        arrays, _ = given(folder, name, batch)
        values = [place.put(a.astype(kind) if a.dtype.kind == "f" else a) for a in arrays]
        return lambda: f(*values), place.sync, place.get

    return make


def torch_side(device: str, how: str) -> Callable[..., Made]:
    import torch
    from timed import network

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None

    def make(folder: str, name: str, batch: int, dtype: str) -> Made:
        torch._dynamo.reset()
        kind = getattr(torch, dtype)
        net = prepared(network(name)[0], device, kind)
        values = []
        for a in given(folder, name, batch)[0]:
            v = torch.from_numpy(a).to(device)
            if a.dtype.kind == "f":
                v = v.to(kind, memory_format=torch.channels_last)
            values.append(v)
        run = net
        if how == "compile":
            run = torch.compile(net, mode="reduce-overhead", dynamic=False)

        def call() -> Any:
            with torch.no_grad():
                return run(*values)

        if how == "graph" and device == "cuda":
            call = captured(call)
        return call, sync, lambda y: y.double().cpu().numpy()

    return make


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
        if not Path(f"{folder}/{name}.onnx").exists():
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


def child(kind: str, device: str) -> None:
    """Answers a line of JSON by one: ``[folder, name, batch, dtype]`` prepares, ``[]`` times."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print goes to the errors
    sys.path.insert(0, str(ROOT))
    make = (symdnn_side if kind == "symdnn" else torch_side)(device, kind)
    made: Made | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question:
                made = None
                found, made = begun(make, question)
            else:
                assert made is not None, "a row was prepared"
                found = timed_calls(*made[:2])
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(found), file=answers, flush=True)


def begun(make: Callable[..., Made], question: list[Any]) -> tuple[dict[str, float], Made]:
    """How far the first result is off, and the seconds to it; then calls that are not timed."""
    start = time.perf_counter()
    call, sync, get = made = make(*question)
    y = get(call())
    first = time.perf_counter() - start
    wanted = given(*question[:3])[1].astype(np.float64)
    off = float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))
    end = time.perf_counter() + SETTLING
    while time.perf_counter() < end:
        call()
        sync()
    return {"off": off, "first_s": round(first, 2)}, made


def timed_calls(call: Callable[[], Any], sync: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of calls that are each waited for (median), and of calls in a row (mean)."""
    seconds: list[float] = []
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


class Side:
    """A process that runs one side; it is begun again after a row that took too long."""

    def __init__(self, kind: str, args: argparse.Namespace) -> None:
        self.kind, self.device, self.log = kind, args.device, args.folder / f"{kind}.log"
        self._start()

    def _start(self) -> None:
        command = [sys.executable, __file__, "--child", self.kind, self.device]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ask(self, question: list[Any]) -> None:
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the answer will say so

    def answer(self, end: float) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None, "the process was begun with a pipe"
        if not select.select([out], [], [], max(0.0, end - time.perf_counter()))[0]:
            return self._again("ran past its limit")
        line = out.readline()
        return json.loads(line) if line else self._again("the process ended")

    def _again(self, why: str) -> dict[str, Any]:
        self.process.kill()
        self.process.wait()
        self._start()
        return {"error": f"{why}, see {self.log}"}


def row_of(sides: list[Side], question: list[Any], limit: float) -> dict[str, Any]:
    """What each side says of a row."""
    found = {}
    for s in sides:  # one after the other: each measures its algorithms on an idle card
        s.ask(question)
        found[s.kind] = s.answer(time.perf_counter() + limit)
    good = [s for s in sides if "error" not in found[s.kind]]
    times: dict[str, list[dict[str, float]]] = {s.kind: [] for s in good}
    for _ in range(ROUNDS):
        for s in good:
            s.ask([])
            times[s.kind].append(s.answer(time.perf_counter() + limit))
    for kind, records in times.items():
        for k in ("ms", "row_ms"):
            if all(k in r for r in records):
                found[kind][k] = round(statistics.median(r[k] for r in records), 4)
    return dict(zip(("network", "batch", "dtype"), question[1:])) | found


def quotients(row: dict[str, Any], peers: list[str]) -> dict[str, float]:
    """A peer's time over symdnn's, of those that have one."""
    own = row["symdnn"].get("ms")
    return {p: row[p]["ms"] / own for p in peers if own and "ms" in row[p]}


def shown(row: dict[str, Any], peers: list[str]) -> str:
    """A row as a line."""
    words = [f"{row['network']:18} b{row['batch']:<3} {row['dtype']:8}"]
    for who in ("symdnn", *peers):
        r = row[who]
        words.append(f"{who} {r['ms']:.3f} {r['row_ms']:.3f} off {r['off']:.0e} ({r['first_s']} s)"
                     if "ms" in r else f"{who} {r['error']}")  # fmt: skip
    words += [f"{p} {q:.2f}" for p, q in quotients(row, peers).items()]
    if row.get("wrong"):
        words.append("WRONG")
    return "  ".join(words)


def measure(sides: list[Side], exporting: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows that the budget allows."""
    begin, rows = time.perf_counter(), recorded(args)
    asked = [(n, b, d) for n in args.names for d in args.dtypes for b in args.batches]
    there = {(r["network"], r["batch"], r["dtype"]) for r in rows}
    asked = [q for q in asked if q not in there]
    for name, batch, dtype in asked:
        if time.perf_counter() - begin > args.budget:
            print(f"the budget is spent before {name} b{batch} {dtype}", flush=True)
            break
        while not Path(f"{args.folder}/{name}-b{batch}.npz").exists():
            if exporting.poll() is not None:
                raise SystemExit(f"{name} was not exported, see {args.folder}/export.log")
            time.sleep(0.02)
        row = row_of(sides, [str(args.folder), name, batch, dtype], args.limit)
        off = [row[p]["off"] for p in args.peers if "off" in row[p]]
        if off and "off" in row["symdnn"]:
            row["wrong"] = not row["symdnn"]["off"] <= TIMES_OFF * max(off) + ALSO_OFF
        print(shown(row, args.peers), flush=True)
        if args.out:
            with args.out.open("a") as file:
                print(json.dumps(row), file=file)
        rows.append(row)
    return rows


def recorded(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of an earlier run with these peers."""
    if args.out is None or not args.out.exists():
        return []
    rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    return [r for r in rows if all(p in r for p in args.peers)]


def summary(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """Geometric means of the quotients, of each peer and of the best one."""
    all_of = [quotients(r, peers) for r in rows]
    for who in (*peers, "the best"):
        qs = [min(q.values()) if who == "the best" else q.get(who) for q in all_of if q]
        good = [q for q in qs if q]
        if good:
            mean = statistics.geometric_mean(good)
            print(
                f"{who}: geometric mean of {len(good)} quotients {mean:.2f}, least {min(good):.2f}"
            )


def main() -> None:
    """Exports, measures and prints, as the options say."""
    if "--child" in sys.argv:
        child(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--peers", nargs="*", default=["graph", "eager"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "onnx-speed")
    parser.add_argument("--budget", type=float, default=235, help="seconds for all rows")
    parser.add_argument("--limit", type=float, default=60, help="seconds to prepare a row")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.export:
        exports(args.device, str(args.folder), args.names, args.batches)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sides share the processors
    command = [sys.executable, __file__, *args.names, "--export", "--device", args.device,
               "--folder", str(args.folder), "--batches", *map(str, args.batches)]  # fmt: skip
    sides = [Side(k, args) for k in ("symdnn", *args.peers)]
    with (args.folder / "export.log").open("w") as log:
        exporting = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        summary(measure(sides, exporting, args), args.peers)
    finally:
        for process in [exporting, *(s.process for s in sides)]:
            process.kill()


if __name__ == "__main__":
    main()
