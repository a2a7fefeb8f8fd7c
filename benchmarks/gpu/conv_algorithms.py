"""symdnn's `time_once` against PyTorch's benchmark mode, convolution by convolution.

    python -m benchmarks.gpu.conv_algorithms [--out FILE] [--budget 420] [--only REGEX] [--again]

Seven layers of AlexNet's and VGG-16's kinds and the 7x7 that cudnn-python-wrappers shows, forward
and both gradients, in float32, TF32 and bfloat16 (channels last). Both libraries run in one process
on one cuDNN. What is timed is a captured CUDA graph of the one convolution, replayed; windows of
both alternate, the medians are compared. symdnn's choice was checked against a trusted algorithm
before (`error`, relative in the 2-norm). A line of JSON for each case goes to FILE, and what FILE
has already is not measured again, so that the same command goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Name -> batch, channels, size, kernels, their size, pad, stride.
LAYERS = {
    "alexnet_conv1": (128, 3, 227, 96, 11, 0, 4),
    "alexnet_conv2": (128, 96, 27, 256, 5, 2, 1),
    "alexnet_conv3": (128, 256, 13, 384, 3, 1, 1),
    "vgg16_conv1_2": (64, 64, 224, 64, 3, 1, 1),
    "vgg16_conv2_2": (64, 128, 112, 128, 3, 1, 1),
    "vgg16_conv3_2": (64, 256, 56, 256, 3, 1, 1),
    "vgg16_conv4_2": (64, 512, 28, 512, 3, 1, 1),
    "wrappers_7x7": (64, 128, 112, 128, 7, 3, 1),
}
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
PRECISIONS = ("fp32", "tf32", "bf16")
_WINDOWS, _WINDOW_MS = 7, 4.0


#: A name, or sizes.
Layer = str | tuple[int, ...]


def sizes_of(layer: Layer) -> tuple[int, ...]:
    """Batch, channels, size, kernels, their size, pad, stride."""
    return LAYERS[layer] if isinstance(layer, str) else layer


def cases() -> Iterator[tuple[str, str, str, str]]:
    """Name, layer, direction, precision."""
    for layer in LAYERS:
        for direction in DIRECTIONS:
            for precision in PRECISIONS:
                yield f"{layer}/{direction}/{precision}", layer, direction, precision


def signature_of(layer: Layer, direction: str, precision: str) -> Any:
    """The case as :func:`symdnn.gpu.conv_table.conv` describes it."""
    from symdnn.gpu.conv_table import conv

    n, c, size, k, r, pad, stride = sizes_of(layer)
    narrow = precision == "bf16"
    return conv(
        (n, c, size, size), (k, c, r, r), pad, stride, direction=direction,
        dtype="bfloat16" if narrow else "float32", layout="NHWC" if narrow else "NCHW",
        tf32=precision == "tf32",
    )  # fmt: skip


# -- symdnn ----------------------------------------------------------------------------------------


class Symdnn:
    """One convolution by what `time_once` chose."""

    def __init__(self, layer: Layer, direction: str, precision: str) -> None:
        from symdnn.gpu.conv.algorithm import choose
        from symdnn.gpu.conv.bench import Bench
        from symdnn.gpu.device.context import context

        self.signature = signature_of(layer, direction, precision)
        self.context = context()
        with self.context.current():
            start = time.perf_counter()
            self.chosen = choose(self.signature, self.context.index)
            self.seconds = time.perf_counter() - start
            self.bench = Bench(self.context, self.signature).__enter__()
            self.bench.compute_reference()
            self.error, _ = self.bench.check(self.chosen.candidate)
            self._kept = self.bench.repeating(self.chosen.candidate)
            self.replay = self.bench.clock.captured_runs(self._kept.__enter__(), 1)

    def window(self, launches: int) -> float:
        """Milliseconds of one run."""
        with self.context.current():
            return self.bench.clock.elapsed_ms(self.replay, launches) / launches

    def close(self) -> None:
        """Free its memory."""
        with self.context.current():
            self._kept.__exit__(None, None, None)
            self.bench.__exit__()

    def facts(self) -> dict[str, Any]:
        """What it runs."""
        c = self.chosen.candidate
        return {
            "symdnn_api": c.api, "symdnn_algorithm": c.name, "symdnn_error": self.error,
            "symdnn_workspace": c.workspace_bytes, "symdnn_choice_s": round(self.seconds, 2),
        }  # fmt: skip


# -- PyTorch ---------------------------------------------------------------------------------------


class Torch:
    """The same convolution by PyTorch, `torch.backends.cudnn.benchmark` on."""

    def __init__(self, layer: Layer, direction: str, precision: str) -> None:
        import torch

        self.torch = torch
        n, c, size, k, r, pad, stride = sizes_of(layer)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        how = {"device": "cuda", "dtype": torch.bfloat16 if precision == "bf16" else torch.float32}
        form = torch.channels_last if precision == "bf16" else torch.contiguous_format
        x = torch.rand(n, c, size, size, **how).sub_(0.5).to(memory_format=form)
        w = torch.rand(k, c, r, r, **how).sub_(0.5).to(memory_format=form)
        y = torch.nn.functional.conv2d(x, w, None, stride, pad)
        dy = torch.rand_like(y).sub_(0.5)
        self._run = self._function(direction, x, w, dy, stride, pad)
        start = time.perf_counter()
        self._run()
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - start
        self.graph = self._captured()

    def _function(
        self, direction: str, x: Any, w: Any, dy: Any, stride: int, pad: int
    ) -> Callable[[], Any]:
        if direction == "fwd":
            return lambda: self.torch.nn.functional.conv2d(x, w, None, stride, pad)
        mask = [direction == "bwd_data", direction == "bwd_filter", False]
        backward = self.torch.ops.aten.convolution_backward
        return lambda: backward(
            dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
        )

    def _captured(self) -> Any:
        stream = self.torch.cuda.Stream()
        with self.torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self._result = self._run()
        return graph

    def window(self, launches: int) -> float:
        """Milliseconds of one run."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(launches):
            self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / launches

    def close(self) -> None:
        """Free its memory."""
        self.graph = self._run = self._result = None  # type: ignore[assignment]
        self.torch.cuda.empty_cache()


# -- the comparison --------------------------------------------------------------------------------


def measured(name: str, layer: Layer, direction: str, precision: str) -> dict[str, Any]:
    """The record of one case."""
    sides: tuple[Any, ...] = ()
    try:
        torch = Torch(layer, direction, precision)
        sides = (torch,)
        symdnn = Symdnn(layer, direction, precision)
        sides = (symdnn, torch)
        times: dict[Any, list[float]] = {side: [] for side in sides}
        for side in sides:
            side.window(2)
        launches = max(1, round(_WINDOW_MS / symdnn.window(2)))
        for _ in range(_WINDOWS):
            for side in sides:
                times[side].append(side.window(launches))
        ours, theirs = (statistics.median(times[side]) for side in sides)
        return {
            "case": name, "symdnn_ms": round(ours, 5), "torch_ms": round(theirs, 5),
            "ratio": round(theirs / ours, 3), **symdnn.facts(),
            "torch_choice_s": round(torch.seconds, 2),
        }  # fmt: skip
    finally:
        for side in sides:
            side.close()


def table(records: list[dict[str, Any]]) -> str:
    """A line for each case; the ratio is PyTorch's time over symdnn's, above 1 symdnn is faster."""
    lines = [
        "case                            symdnn ms   torch ms  ratio  error    what symdnn ran"
    ]
    for r in records:
        lines.append(
            f"{r['case']:<31} {r['symdnn_ms']:>9.4f}  {r['torch_ms']:>9.4f}  {r['ratio']:>5.2f}  "
            f"{r['symdnn_error']:.0e}  {r['symdnn_api']} {r['symdnn_algorithm'][:40]}"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """The card and the versions."""
    import torch

    return {
        "case": "info", "date": time.strftime("%Y-%m-%d"), "gpu": torch.cuda.get_device_name(0),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
        "commit": os.environ.get("SYMDNN_COMMIT") or _said("git", "rev-parse", "--short", "HEAD"),
    }  # fmt: skip


def _said(*command: str) -> str:
    """The first line of what a program prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def main(argv: list[str] | None = None) -> int:
    """Measure what is left within the budget, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("conv_algorithms.jsonl"))
    parser.add_argument("--budget", type=float, default=420, help="seconds")
    parser.add_argument("--only", default="", help="a regular expression on the names of cases")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    args = parser.parse_args(argv)
    end, left = time.monotonic() + args.budget, 0
    records = {} if args.again or not args.out.exists() else _read(args.out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        for case in cases():
            if case[0] in records or not re.search(args.only, case[0]):
                continue
            if time.monotonic() > end:
                left += 1
                continue
            if "info" not in records:
                records["info"] = machine()
                print(json.dumps(records["info"]), file=file)
            records[case[0]] = measured(*case)
            print(json.dumps(records[case[0]]), file=file, flush=True)
    print(records.get("info", ""))
    print(table([r for name, r in records.items() if name != "info"]))
    print(f"{left} cases are left: run it again" if left else "nothing is left")
    return 0


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["case"]: line for line in lines}


if __name__ == "__main__":
    sys.exit(main())
