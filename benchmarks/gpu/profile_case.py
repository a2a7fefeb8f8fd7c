"""Which kernels a step runs, and how long each takes: symdnn's, and torch's for comparison.

    python -m benchmarks.gpu.profile_case lenet5/b64/train/tf32/nchw [--torch compile] [--top 10]

CUPTI (through ``torch.profiler``) records everything that this process enqueues, replays of CUDA
graphs included, whoever enqueued it. Printed are the milliseconds a step by the clock without the
profiler, the part of it that the GPU was busy, and the kernels summed by name. ``--by-op`` sums
them by symdnn's ops too, of an uncaptured step, ``--host`` shows where Python spends its time.
"""

from __future__ import annotations

import argparse
import bisect
import cProfile
import io
import json
import pstats
import re
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu import device as devices
from benchmarks.gpu.symdnn_cases import DTYPES, OPERATIONS, Cases, NetJob, Rotating
from benchmarks.workloads import pspec

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"


class NullSuite:
    """What :class:`Cases` and the torch jobs need of ``pcommon.Suite``."""

    def __init__(self, on_gpu: bool) -> None:
        self.tiny, self.cpu = not on_gpu, not on_gpu
        self.a = SimpleNamespace(min_time=0.3)
        self.wanted: dict[tuple[str, str], Callable[[], Any]] = {}
        self.cleanup: Callable[[], None] = lambda: None

    def add(self, case: str, peer: str, run: Any, *rest: Any) -> None:
        """Remember a case."""
        self.wanted[case, peer] = run


def kernels_of(events: Sequence[dict[str, Any]], steps: int) -> dict[str, tuple[float, float]]:
    """name -> (launches, microseconds) of one step, from a Chrome trace's events."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in device_events(events):
        entry = found[short(str(event["name"]))]
        entry[0] += 1 / steps
        entry[1] += float(event["dur"]) / steps
    return {name: (n, us) for name, (n, us) in found.items()}


def device_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kernels, copies and fills on the device."""
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return [e for e in events if e.get("ph") == "X" and e.get("cat") in kinds]


def busy_us(events: Sequence[dict[str, Any]]) -> float:
    """Microseconds in which at least one of the events ran."""
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)
    total = end = 0.0
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def short(name: str) -> str:
    """A kernel's name without its namespace, arguments and most of its template parameters."""
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    name = name.split("(")[0] or name
    head, mark, rest = name.partition("<")
    words = re.findall(r"[A-Za-z_]\w{3,}", rest) if mark else []
    tail = "<" + ",".join(w.rpartition("::")[2] for w in words[:2]) + ">" if words else ""
    return (head.rpartition("::")[2] + tail)[:86]


def traced(
    step: Callable[[], Any], sync: Callable[[], None], steps: int, host: bool = False
) -> list[dict[str, Any]]:
    """The trace of ``steps`` steps; with ``host``, of the launches and marked ranges too."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA] + [ProfilerActivity.CPU] * host
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=activities) as trace:
            for _ in range(steps):
                step()
            sync()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            trace.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def measure(
    step: Callable[[], Any], sync: Callable[[], None], steps: int = 20
) -> tuple[float, float, dict[str, tuple[float, float]]]:
    """(ms a step by the clock, ms busy, kernels)."""
    for _ in range(5):
        step()
    sync()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    sync()
    clock = (time.perf_counter() - begin) / steps * 1e3
    traced(step, sync, 2)  # the first trace loads CUPTI
    events = traced(step, sync, steps)
    return clock, busy_us(device_events(events)) / steps / 1e3, kernels_of(events, steps)


def show(title: str, found: tuple[float, float, dict[str, tuple[float, float]]], top: int) -> str:
    """A table: the most expensive kernels first."""
    clock, busy, kernels = found
    launches = sum(n for n, _ in kernels.values())
    lines = [f"== {title}: {clock:.3f} ms a step, GPU busy {busy:.3f} ms, {launches:.0f} launches"]
    rows = [(us, count, name) for name, (count, us) in kernels.items()]
    rows.sort(reverse=True)
    if rows[top:]:
        more = [sum(column) for column in zip(*((us, n) for us, n, _ in rows[top:]), strict=True)]
        rows = [*rows[:top], (more[0], more[1], "others")]
    for us, count, name in rows:
        lines.append(f"{us:9.1f} us {us / 10 / max(busy, 1e-9):5.1f}% {count:6.1f}x  {name}")
    return "\n".join(lines)


def symdnn_step(case: str) -> tuple[Callable[[], Any], Callable[[], None], Any]:
    """(a step, what waits for it, the function): of a network, a recurrent net, an operation."""
    name, *words = case.split("/")
    suite: Any = NullSuite(True)
    cases = Cases(suite)
    sync = cases.start().sync
    if name in OPERATIONS:
        mode, precision, layout = [*words, ""][:3]
        work = cases.operation(name, precision, layout, mode)
        print("relative error", work.prepare(shared=False)["relerr"])
        return Rotating(work.calls), sync, work.functions[0]
    batch, mode, precision, layout = words[:4]
    kind, _, size = name.partition("_")
    if kind in ("lstm", "gru"):
        sizes = dict(pspec.RNN_BIG if size == "big" else pspec.RNN_DOC)
        function, call, *_ = cases.recurrent(kind, sizes, DTYPES[precision], mode)
        return call, sync, function
    ring = 8 if name in ("lenet5", "mlp") else 2
    job = NetJob(cases.nets[name], cases.start(), int(batch[1:]), mode, precision, layout, ring)
    print("symdnn losses", [round(v, 5) for v in job.first().get("losses", [])])
    return job, sync, job.function


# -- by symdnn's ops ------------------------------------------------------------------------------


def by_op(
    function: Any, step: Callable[[], Any], sync: Callable[[], None], steps: int, shapes: bool
) -> dict[str, tuple[float, float]]:
    """op -> (launches, microseconds) of an uncaptured step; updates are under their own name."""
    import symdnn

    mark_steps(function, shapes)
    with symdnn.config.change_flags(**{"gpu.graph": "off"}):
        step()
        sync()
        events = traced(step, sync, steps, host=True)
    return attributed(events, steps)


def mark_steps(function: Any, shapes: bool) -> None:
    """Put each step of the plans in a range of the profiler, and switch their graphs off."""
    from torch.profiler import record_function

    def marked(plan: Any, node: Any, run: Any) -> Any:
        label = f"op:{type(node.op).__name__}"
        if shapes:
            types = [tuple(function_shape(plan, v)) for v in (*node.inputs[:2], node.outputs[0])]
            label += f" {types[:-1]} -> {types[-1]}"

        def within(*args: Any) -> Any:
            with record_function(label):
                return run(*args)

        return within

    for plan in function.plans():
        bound = plan.bound
        for part in (bound.steps.head, bound.steps.middle, bound.steps.updates):
            part[:] = [s._replace(run=marked(plan, s.node, s.run)) for s in part]
        bound.replay, bound.not_captured = None, "profiled"


def function_shape(plan: Any, v: Any) -> Sequence[int]:
    """The shape of a value in a plan."""
    shape = getattr(plan.specialised.type_of(v), "shape", ())
    return [-1 if n is None else n for n in shape or ()]


def attributed(events: Sequence[dict[str, Any]], steps: int) -> dict[str, tuple[float, float]]:
    """Time on the device by the marked range in which the work was enqueued."""
    ranges = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), str(e["name"]).partition("op:")[2])
        for e in events
        if e.get("cat") == "user_annotation" and str(e["name"]).startswith("op:")
    )
    starts = [r[0] for r in ranges]
    enqueued: dict[int, float] = {}
    for e in events:
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {}):
            enqueued[int(e["args"]["correlation"])] = float(e["ts"])
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for e in device_events(events):
        at = enqueued.get(int(e["args"].get("correlation", -1)), -1.0)
        i = bisect.bisect_right(starts, at) - 1
        inside = i >= 0 and at <= ranges[i][1]
        entry = found[ranges[i][2] if inside else f"(outside the plan) {short(str(e['name']))}"]
        entry[0] += 1 / steps
        entry[1] += float(e["dur"]) / steps
    return {name: (n, us) for name, (n, us) in found.items()}


def host_profile(step: Callable[[], Any], sync: Callable[[], None], steps: int, top: int) -> str:
    """Where Python spends its time, by function."""
    profiler = cProfile.Profile()
    sync()
    profiler.enable()
    for _ in range(steps):
        step()
    profiler.disable()
    sync()
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.strip_dirs().sort_stats("tottime").print_stats(top)
    rows = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(f"   {line}" for line in rows[:1] + rows[3:])


def torch_step(case: str, how: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The same of torch: ``eager``, ``compile``, or one of these with ``+graph``."""
    sys.path.insert(0, str(WORKLOADS))
    import ptorch

    name, batch, mode, precision, layout = case.split("/")[:5]
    suite: Any = NullSuite(True)
    dev = ptorch.Dev(suite)
    ring = 8 if name in ("lenet5", "mlp") else 2
    net = getattr(pspec, name)()
    job = ptorch.Job(net, dev, int(batch[1:]), mode, precision, layout == "nhwc", ring)
    if how.startswith("compile"):
        job.compile()
    first = job.first()
    print("torch loss0", first["loss0"], "loss3", first["loss3"])
    return (job.graph() if how.endswith("+graph") else job), dev.sync


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--torch", default="", help="eager, compile, eager+graph, compile+graph")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-symdnn", action="store_true")
    parser.add_argument("--host", action="store_true", help="where Python spends its time")
    parser.add_argument("--by-op", action="store_true", help="sum by op, not by kernel")
    parser.add_argument("--by-shape", action="store_true", help="sum by op and shapes")
    args = parser.parse_args()
    if not args.no_symdnn:
        devices.set_flags(True)
    for case in args.cases:
        if not args.no_symdnn:
            show_symdnn(case, args)
        if args.torch:
            step, sync = torch_step(case, args.torch)
            print(show(f"torch {args.torch} {case}", measure(step, sync, args.steps), args.top))


def show_symdnn(case: str, args: Any) -> None:
    """Print what symdnn does in a step of a case."""
    step, sync, function = symdnn_step(case)
    print(show(f"symdnn {case}", measure(step, sync, args.steps), args.top), flush=True)
    if args.host:
        print(host_profile(step, sync, 200, args.top), flush=True)
    if args.by_op or args.by_shape:
        ops = by_op(function, step, sync, 3, args.by_shape)
        total = sum(us for _, us in ops.values()) / 1e3
        print(show("by op, uncaptured", (0.0, total, ops), args.top), flush=True)


if __name__ == "__main__":
    main()
