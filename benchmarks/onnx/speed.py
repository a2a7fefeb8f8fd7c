"""Time of a call of exported models on the CPU: symdnn and its peers in turn.

python benchmarks/onnx/speed.py FOLDER --runtime /path/to/python [NAME ...] [--batch 32]
    [--peers onnxruntime openvino torch] [--threads 1] [--dtype bfloat16 --wide FOLDER]
    [--computes bfloat16]

FOLDER has NAME.onnx with inputs i0, i1, ... in NAME.npz; timed.py and architectures.py write such.
Each side is a child process that answers a line with times: symdnn in this Python, the others in
that of ``--runtime``. The peer torch runs the networks of timed.py, from which the files come.
``--dtype`` is what timed.py made the files for. Of 16 bits OpenVINO computes in the type of its
choice, and ONNX Runtime, which runs no file in bfloat16 on a processor, has the file of the same
name in ``--wide``, in float32. With ``--computes`` symdnn loads the file with this dtype, and
OpenVINO computes in it.
Printed are medians of processor time and of wall time, the quotient of a peer's processor time and
symdnn's, and the seconds to import, load, compile and call once. ``--threads 1`` is the measure for
a machine that others use: no side's threads spin while they wait for a processor. With more threads
a side is called after a pause, in which the threads of the one before stop spinning: a core that
these hold is lost to whoever is next, and symdnn goes down to fewer threads for a while.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Calls that are not timed: so many processor seconds, beside which kernels are compiled, and of
#: small networks the thousand after which symdnn compiles their smallest kernels too.
SETTLING, SETTLING_CALLS, MOST_SETTLING = 2.0, 1100, 10.0
#: Seconds before a call of several threads.
PAUSE = 0.3


def inputs(path: str, batch: int, dtype: str) -> list[Any]:
    """The inputs of a model, repeated along the first axis up to ``batch`` (0: as they are)."""
    data = np.load(Path(path).with_suffix(".npz"))
    arrays = [data[f"i{k}"] for k in range(len(data.files))]
    kind = dtype if dtype != "bfloat16" else __import__("ml_dtypes").bfloat16
    arrays = [a.astype(kind) if a.dtype.kind == "f" else a for a in arrays]
    return [np.take(a, np.arange(batch) % len(a), 0) if batch else a for a in arrays]


def symdnn_call(
    path: str, arrays: list[Any], threads: int, dtype: str, computes: str
) -> Callable[[], Any]:
    import symdnn
    import symdnn.onnx

    if threads:
        symdnn.config.openmp.threads = threads

    f = symdnn.onnx.compile(path, dtype=computes or None)
    return lambda: f(*arrays)


def onnxruntime_call(
    path: str, arrays: list[Any], threads: int, dtype: str, computes: str
) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: a for i, a in zip(session.get_inputs(), arrays)}
    return lambda: session.run(None, feed)


def openvino_call(
    path: str, arrays: list[Any], threads: int, dtype: str, computes: str
) -> Callable[[], Any]:
    import openvino

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads or 2}
    if computes or dtype == "float32":
        hints = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
        options["INFERENCE_PRECISION_HINT"] = hints[computes or dtype]
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
    values = [openvino.Tensor(a.view("u2"), a.shape, openvino.Type.bf16) if a.dtype.kind == "V"
              else a for a in arrays]  # fmt: skip
    return lambda: request.infer(values)


def torch_call(
    path: str, arrays: list[Any], threads: int, dtype: str, computes: str
) -> Callable[[], Any]:
    import torch
    from timed import network

    torch.set_num_threads(threads or 2)
    kind = getattr(torch, dtype)
    net = network(Path(path).stem)[0].to(kind)
    values = [torch.from_numpy(a) if a.dtype.kind in "biu" else
              torch.from_numpy(a.astype("float32")).to(kind) for a in arrays]  # fmt: skip

    def call() -> None:
        with torch.inference_mode():
            net(*values)

    return call


SIDES = {"symdnn": symdnn_call, "onnxruntime": onnxruntime_call, "openvino": openvino_call,
         "torch": torch_call}  # fmt: skip


def child(kind: str, path: str, batch: str, threads: str, dtype: str, computes: str) -> None:
    """Answers each line with processor seconds and wall seconds of one call."""
    arrays = inputs(path, int(batch), dtype)
    start = time.perf_counter()
    call = SIDES[kind](path, arrays, int(threads), dtype, computes)
    call()
    print(time.perf_counter() - start, 0, flush=True)
    calls, begun = 0, time.process_time()
    while (past := time.process_time() - begun) < MOST_SETTLING:
        if past > SETTLING and calls >= SETTLING_CALLS:
            break
        call()
        calls += 1
        time.sleep(0.0005)
    for _line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


def started(python: str, kind: str, path: Path, args: argparse.Namespace) -> subprocess.Popen[str]:
    dtype = args.dtype
    if kind == "onnxruntime" and dtype == "bfloat16":
        path, dtype = args.wide / path.name, "float32"
    numbers = [str(args.batch), str(args.threads), dtype, args.computes]
    return subprocess.Popen(
        [python, __file__, "--child", kind, str(path), *numbers], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def ask(process: subprocess.Popen[str]) -> tuple[float, float]:
    print(file=process.stdin, flush=True)
    cpu, wall = process.stdout.readline().split()
    return float(cpu), float(wall)


def measured(path: Path, args: argparse.Namespace) -> list[tuple[float, float, float]]:
    """(processor ms, wall ms, s to begin) of symdnn and each peer; NaN for one that fails."""
    kinds = ["symdnn", *args.peers]
    pythons = [sys.executable if k == "symdnn" else args.runtime for k in kinds]
    sides = [started(p, k, path, args) for p, k in zip(pythons, kinds)]
    lines = [s.stdout.readline() for s in sides]
    lost = float("nan")
    times: list[list[tuple[float, float]]] = [[] for _ in sides]
    for _ in range(args.calls):
        for found, s, line in zip(times, sides, lines):
            time.sleep(PAUSE if args.threads != 1 else 0.0)
            found.append(ask(s) if line else (lost, lost))
    for s in sides:
        s.kill()
    begun = [float(line.split()[0]) if line else lost for line in lines]
    return [
        (*(1e3 * statistics.median(t[k] for t in ts) for k in (0, 1)), b)
        for ts, b in zip(times, begun)
    ]  # fmt: skip


def main() -> None:
    if "--child" in sys.argv:
        child(*sys.argv[2:8])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime", default=sys.executable)
    parser.add_argument("--peers", nargs="*", default=["onnxruntime"])
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: each side's default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--computes", default="", help="the dtype of the computation")
    parser.add_argument("--wide", type=Path, help="the folder of the files in float32")
    parser.add_argument("--calls", type=int, default=15)
    args = parser.parse_args()
    kinds = ["symdnn", *args.peers]
    print("model, for", ", ".join(kinds), "each: ms of a processor, wall ms, s to begin;",
          "then quotients")  # fmt: skip
    quotients: list[list[float]] = [[] for _ in args.peers]
    for path in sorted(args.folder.glob("*.onnx")):
        if args.names and path.stem not in args.names:
            continue
        own, *others = measured(path, args)
        row = [n for side in (own, *others) for n in side]
        for found, other in zip(quotients, others):
            found.append(other[0] / own[0])
            row.append(found[-1])
        print(f"{path.stem:28}", " ".join(f"{n:8.2f}" for n in row), flush=True)
    for peer, found in zip(args.peers, quotients):
        good = [q for q in found if q == q] or [float("nan")]
        mean = statistics.geometric_mean(good)
        print(f"{peer}: geometric mean of {len(good)} quotients {mean:.2f}, least {min(good):.2f}")


if __name__ == "__main__":
    main()
