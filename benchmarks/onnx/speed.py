"""Time of a call of exported models, symdnn and ONNX Runtime in turn, on the CPU.

Each side runs in the Python that has it, as a child that answers a line with a time:

python benchmarks/onnx/speed.py FOLDER --runtime /path/to/python-with-onnxruntime [NAME ...]

FOLDER has NAME.onnx with inputs i0, i1, ... in NAME.npz. Prints for each model the medians of
process time and wall time of both, and the time to load and compile.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def child(kind: str, path: str) -> None:
    """Answers each line with processor seconds and wall seconds of one call."""
    data = np.load(Path(path).with_suffix(".npz"))
    arrays = [data[f"i{k}"] for k in range(len(data.files))]
    start = time.perf_counter()
    if kind == "symdnn":
        import symdnn.onnx

        f = symdnn.onnx.compile(path)
        call = lambda: f(*arrays)  # noqa: E731
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feed = {i.name: a for i, a in zip(session.get_inputs(), arrays)}
        call = lambda: session.run(None, feed)  # noqa: E731
    call()
    print(time.perf_counter() - start, 0, flush=True)
    for _ in range(3):
        call()
    for _line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


def measure(python: str, kind: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, __file__, "--child", kind, str(path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def ask(process: subprocess.Popen[str]) -> tuple[float, float]:
    print(file=process.stdin, flush=True)
    cpu, wall = process.stdout.readline().split()
    return float(cpu), float(wall)


def main() -> None:
    if "--child" in sys.argv:
        child(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime", default=sys.executable)
    parser.add_argument("--calls", type=int, default=15)
    args = parser.parse_args()
    print("model, ms of a processor (symdnn, onnxruntime, quotient), wall ms, start s")
    quotients = []
    for path in sorted(args.folder.glob("*.onnx")):
        if args.names and path.stem not in args.names:
            continue
        sides = [measure(sys.executable, "symdnn", path), measure(args.runtime, "ort", path)]
        begun = [float(s.stdout.readline().split()[0]) for s in sides]
        times = [[ask(s) for s in sides] for _ in range(args.calls)]
        for s in sides:
            s.kill()
        cpu = [1e3 * statistics.median(t[k][0] for t in times) for k in (0, 1)]
        wall = [1e3 * statistics.median(t[k][1] for t in times) for k in (0, 1)]
        quotients.append(cpu[1] / cpu[0])
        numbers = [*cpu, quotients[-1], *wall, *begun]
        print(f"{path.stem:32}", " ".join(f"{n:9.2f}" for n in numbers), flush=True)
    mean = statistics.geometric_mean(quotients)
    print(f"geometric mean of the quotients of {len(quotients)} models: {mean:.2f}")


if __name__ == "__main__":
    main()
