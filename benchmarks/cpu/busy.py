"""Calls beside as many busy processes as there are processors, by one thread and by two.

Threads that meet wait for the last of them, which waits for the scheduler where other processes
want the processors. Reported: the median and the 95th percentile of 300 calls in ms, idle and
beside N busy processes, and what two threads take of one thread's time. Goals beside busy ones: at
most 1.3 times the median, and twice the 95th percentile. The column "load" is how many threads of
other programs were ready to run just before: "idle" is that only where it is 0.

    python -m benchmarks.cpu.busy [--calls 300] [--busy N] [--only lstm scan]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.cpu.run import machine
from benchmarks.cpu.steps import symdnn_step

Times = list[float]


def cases() -> dict[str, Callable[[], Any]]:
    """Name -> what is called."""
    import numpy as np

    import symdnn
    import symdnn.tensor as T
    from symdnn import nn

    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return rng.standard_normal(shape).astype("float32") * np.float32(0.1)

    x, images = T.tensor3("x"), T.tensor4("images")

    def recurrent(kind: Any) -> Any:
        out = kind(64, 128, 1)(x)
        return symdnn.function([x], out[0] if isinstance(out, tuple | list) else out)

    lstm, gru = recurrent(nn.LSTM), recurrent(nn.GRU)
    w = symdnn.shared(array(128, 128))
    states, _ = symdnn.scan(
        lambda step, h: T.tanh(step + T.dot(h, w)), sequences=[x], outputs_info=[T.zeros((64, 128))]
    )
    scan = symdnn.function([x], states[-1])
    conv = symdnn.function([images], T.nnet.conv2d(images, symdnn.shared(array(32, 16, 3, 3))))
    m = T.matrix("m")
    product = symdnn.function([m], T.dot(m, symdnn.shared(array(512, 512))))
    chain = symdnn.function([m], T.tanh(m) * T.exp(-m * m) + m)
    sequence, wide, pictures = array(32, 16, 64), array(32, 64, 128), array(8, 16, 32, 32)
    square, many = array(512, 512), array(1000, 1000)
    return {
        "lstm": lambda: lstm(sequence),
        "gru": lambda: gru(sequence),
        "scan": lambda: scan(wide),
        "convolution": lambda: conv(pictures),
        "lenet's step": symdnn_step("lenet"),
        "product": lambda: product(square),
        "elementwise": lambda: chain(many),
    }


@contextmanager
def busy(count: int) -> Iterator[None]:
    """``count`` processes that do nothing but run."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def measure(call: Callable[[], Any], calls: int) -> dict[int, Times]:
    """Number of threads -> ms of the calls, sorted; the two take turns, twenty calls each."""
    from symdnn.config import config

    found: dict[int, Times] = {1: [], 2: []}
    while len(found[2]) < calls:
        for count, times in found.items():
            with config.change_flags(**{"openmp.threads": count}):
                call()
                for _ in range(20):
                    start = time.perf_counter()
                    call()
                    times.append((time.perf_counter() - start) * 1e3)
    return {count: sorted(times) for count, times in found.items()}


def row(name: str, where: str, load: int, found: dict[int, Times]) -> str:
    """One line of the table."""
    (m1, p1), (m2, p2) = ((t[len(t) // 2], t[len(t) * 95 // 100]) for t in found.values())
    times = f"{m1:9.3f} {p1:9.3f} {m2:9.3f} {p2:9.3f} {m2 / m1:7.2f} {p2 / p1:7.2f}"
    return f"{name:12} {where:5} {load:5} {times}"


def others() -> int:
    """How many threads of other programs are ready to run: the middle one of some looks."""
    found = []
    for _ in range(9):
        with open("/proc/loadavg") as file:
            found.append(int(file.read().split()[3].partition("/")[0]) - 1)
        time.sleep(0.01)
    return sorted(found)[4]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="calls beside busy processes")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="names of cases")
    args = parser.parse_args()
    at = machine()
    print(f"{time.strftime('%F %T')}, commit {at['commit']}, {at['cpu']}")
    print(f"{at['processors']} processors, {args.busy} busy processes, {args.calls} calls")
    heads = f"{'load':>5} {'1: ms':>9} {'p95':>9} {'2: ms':>9} {'p95':>9} {'ratio':>7} {'p95':>7}"
    print(f"{'':18} {heads}")
    for name, call in cases().items():
        for where, count in (("idle", 0), ("busy", args.busy)):
            if not args.only or name in args.only:
                load = others()
                with busy(count):
                    print(row(name, where, load, measure(call, args.calls)), flush=True)


if __name__ == "__main__":
    main()
