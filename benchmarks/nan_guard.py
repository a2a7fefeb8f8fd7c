"""What ``NanGuardMode`` costs: training steps with and without it, in turn in one process.

    python -m benchmarks.nan_guard [--device cpu|cuda] [--calls 40] [--rounds 7] [CASE ...]

Printed are the milliseconds of a call, the median over rounds of the fastest call of each, and the
ratio. On a GPU a round is timed as one, since calls are enqueued, and ends with a wait. With
``--processor`` the processor's time counts, for one thread (``OMP_NUM_THREADS=1``) on a busy
machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import symdnn
from benchmarks.cpu import side_symdnn, spec
from benchmarks.gpu import symdnn_nets
from benchmarks.workloads import pspec

__all__ = ["CASES", "main", "measured", "steps"]

Step = Callable[[], Any]
Clock = Callable[[], float]
CASES = {
    "cpu": ("net/resnet20_b64/train", "net/lenet5_b64/train", "rnn/lstm_T50_B32_I128_H256/fwdbwd"),
    "cuda": ("resnet50/64", "lenet5/64", "lstm"),
}
_LSTM = {"T": 50, "B": 32, "inp": 512, "hid": 512, "layers": 2}


def steps(device: str, case: str) -> tuple[Step, Step]:
    """(a step, the same step guarded)."""
    found = []
    for mode in ("FAST_RUN", "NanGuardMode"):
        with symdnn.config.change_flags(device=device, mode=mode):
            found.append(_on_cpu(case) if device == "cpu" else _on_gpu(case))
    return found[0], found[1]


def _on_cpu(case: str) -> Step:
    wanted = next(c for c in spec.CASES if c.name == case)
    return side_symdnn.prepare(wanted, "").step


def _on_gpu(case: str) -> Step:
    """A step whose arguments and results stay on the device."""
    name, _, batch = case.partition("/")
    if name == "lstm":
        f = symdnn_nets.rnn_function("lstm", _LSTM, "float32", True)
        pair = pspec.rnn_data(_LSTM["T"], _LSTM["B"], _LSTM["inp"], _LSTM["hid"], 0)
        return partial(f, *(_placed(a) for a in pair))
    net = {"resnet50": pspec.resnet50, "lenet5": pspec.lenet5}[name]()
    x, y = spec.ring(net, int(batch))[0]
    f = symdnn_nets.train_function(symdnn_nets.Model(net))
    return partial(f, _placed(x), _placed(y.astype(np.int32)))


def _placed(value: Any) -> Any:
    """An array on the device."""
    v = symdnn.tensor.TensorType(str(value.dtype), (None,) * value.ndim)("v")
    return symdnn.function([v], symdnn.Out(v * 1, borrow=True))(value)


def measured(
    plain: Step, guarded: Step, calls: int, rounds: int, whole: bool, clock: Clock
) -> list[float]:
    """Milliseconds of a call: plain, guarded. With ``whole`` a round is timed as one."""
    for step in (plain, guarded):
        for _ in range(4):
            _wait(step())
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for at, step in enumerate((plain, guarded)):
            times[at].append(_round(step, calls, whole, clock))
    return [statistics.median(t) * 1e3 for t in times]


def _round(step: Step, calls: int, whole: bool, clock: Clock) -> float:
    least, began = float("inf"), clock()
    for _ in range(calls):
        start = clock()
        result = step()
        least = min(least, clock() - start)
    _wait(result)
    return (clock() - began) / calls if whole else least


def _wait(result: Any) -> None:
    """Read a result, which waits for the device."""
    first = result[0] if isinstance(result, list) else result
    np.asarray(first.get() if hasattr(first, "get") else first)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--device", choices=CASES, default="cpu")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processor", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.processor else time.perf_counter
    print(f"{'case':40} {'plain':>9} {'guarded':>9} {'ratio':>6}")
    for case in given.cases or CASES[given.device]:
        pair = steps(given.device, case)
        a, b = measured(*pair, given.calls, given.rounds, given.device == "cuda", clock)
        print(f"{case:40} {a:6.2f} ms {b:6.2f} ms {b / a:6.2f}", flush=True)


if __name__ == "__main__":
    main()
