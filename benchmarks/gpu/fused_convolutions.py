"""Graphs of a convolution and the normalisation around it: cuDNN's engines, and their time.

    python -m benchmarks.gpu.fused_convolutions [--plans 3] [--only REGEX] [--dtypes bfloat16]

The convolutions are those of ResNet-50 at 64 images, channels last. Forward: sums and sums of
squares of the result behind it; scale, shift and relu before it. Gradients: relu's gradient and a
sum behind that of the input; scale, shift and relu before that of the filters. Printed are the
number of plans that cuDNN builds, the time of the fastest of the first few, and the error of its
sums; or why there are none. ``between in 16 bits``: so are the values between the operations.
"""

from __future__ import annotations

import argparse
import fcntl
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device import Device
from benchmarks.gpu.symdnn_nets import symdnn_dtype
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.graph_conv import strides
from symdnn.gpu.cudnn.graph import GraphBuilder, GraphForm, GraphLaunch, launch, plans

#: Channels, size, kernels, their size, stride.
LAYERS = (
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
    (128, 28, 128, 3, 1), (128, 28, 512, 1, 1), (512, 28, 128, 1, 1), (128, 56, 128, 3, 2),
    (256, 14, 256, 3, 1), (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1), (512, 7, 512, 3, 1),
    (512, 7, 2048, 1, 1),
)  # fmt: skip
BATCH = 64
_POOL_BYTES, _FILL, _ROOM_BYTES = 1 << 30, 1 << 22, 1 << 28


@dataclass(frozen=True)
class FusedConv(GraphForm):
    """A convolution with a prologue (``before``) and an epilogue (``after``)."""

    name = "fused_convolution"

    layer: tuple[int, int, int, int, int]
    dtype: str
    direction: str = "fwd"
    before: bool = False
    after: str = ""
    between: str = "float32"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by role, as (N, C, H, W)."""
        c, size, k, r, stride = self.layer
        out = (size + 2 * (r // 2) - r) // stride + 1
        whole = {"x": (BATCH, c, size, size), "w": (k, c, r, r), "y": (BATCH, k, out, out)}
        of_x, of_y = (1, c, 1, 1), (1, k, 1, 1)
        found = {r: whole[r] for r in ("x", "w", "y")}
        if self.before:
            found.update(scale=of_x, shift=of_x)
        if self.after == "stats":
            found.update(sum=of_y, squares=of_y)
        if self.after in ("relu", "relu, sums"):
            found["mask"] = whole["x"]
        if self.after == "relu, sums":
            found["sum"] = of_x
        return found

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @property
    def result(self) -> str:
        """The role of the convolution's result."""
        return {"fwd": "y", "bwd_data": "x", "bwd_filter": "w"}[self.direction]

    def dtype_of(self, role: str) -> str:
        """The dtype of an array."""
        return "float32" if role in ("sum", "squares") else self.dtype

    def describe(self, graph: GraphBuilder) -> None:
        shapes = self.shapes
        *_, r, stride = self.layer
        mode = frontend.compiled().convolution_mode.CROSS_CORRELATION
        how = {
            "padding": [r // 2] * 2, "stride": [stride] * 2, "dilation": [1, 1],
            "convolution_mode": mode, "compute_data_type": graph.type("float32"),
        }  # fmt: skip

        def given(role: str) -> Any:
            return graph.input(role, shapes[role], strides(shapes[role], "NHWC"), self.dtype)

        def made(value: Any, role: str) -> None:
            how = strides(shapes[role], "NHWC")
            graph.output(value, role, shapes[role], how, self.dtype_of(role))

        def virtual(value: Any, role: str) -> Any:
            return graph.virtual(value, shapes[role], strides(shapes[role], "NHWC"), self.between)

        x = given("x") if self.direction != "bwd_data" else None
        if self.before:
            x = virtual(graph.add("scale", input=x, scale=given("scale")), "x")
            x = virtual(graph.add("bias", input=x, bias=given("shift")), "x")
            x = virtual(graph.add("relu", input=x), "x")
        if self.direction == "fwd":
            y = graph.add("conv_fprop", image=x, weight=given("w"), **how)
            made(y, "y")
            if self.after == "stats":
                for value, role in zip(graph.add("genstats", input=y), ("sum", "squares")):
                    made(value, role)
        elif self.direction == "bwd_filter":
            made(graph.add("conv_wgrad", image=x, loss=given("y"), **how), "w")
        else:
            dx = graph.add("conv_dgrad", loss=given("y"), filter=given("w"), **how)
            if self.after:
                dx = graph.add("relu_backward", loss=virtual(dx, "x"), input=given("mask"))
            made(dx, "x")
            if self.after == "relu, sums":
                add = frontend.compiled().reduction_mode.ADD
                made(graph.add("reduction", input=dx, mode=add), "sum")


FORMS = {
    "fwd": {}, "fwd + statistics": {"after": "stats"}, "norm, relu + fwd": {"before": True},
    "norm, relu + fwd + statistics": {"before": True, "after": "stats"},
    "bwd_filter": {"direction": "bwd_filter"},
    "norm, relu + bwd_filter": {"direction": "bwd_filter", "before": True},
    "bwd_data": {"direction": "bwd_data"},
    "bwd_data + relu": {"direction": "bwd_data", "after": "relu"},
    "bwd_data + relu + sum": {"direction": "bwd_data", "after": "relu, sums"},
}  # fmt: skip


class Probe:
    """A pool of values on the device, and a clock."""

    def __init__(self, turns: str) -> None:
        from cuda.bindings import driver

        from symdnn.gpu.device.clock import Clock

        self.device, self.driver, self.turns = Device(True), driver, turns
        self.context = self.device.runtime.context
        self.clock = Clock(self.context)
        self.pools: dict[str, Any] = {}
        self.room = self.device.put(np.zeros(_ROOM_BYTES, np.uint8))
        self.results = self.device.put(np.zeros(_POOL_BYTES, np.uint8))

    def measured(self, form: FusedConv, most: int) -> str:
        """Plans, the best time and its error; or why there are none."""
        with self.context.current():
            found, why = plans(form, self.context.cudnn, most=most)
            fits = [p for p in found if p.workspace_bytes <= _ROOM_BYTES]
            ready = [launch(form, plan, self.context.cudnn) for plan in fits]
        if not found:
            return f"none: {why[:160]}"
        with self.turn():
            places = self._places(form)
            best, name, failed = inf, "", 0
            for plan, run in zip(fits, ready):
                try:
                    ms = self._time(run, places, best)
                except Exception as error:  # an engine that lists a graph may refuse to run it
                    failed += 1
                    print(f"   {plan.name} failed: {str(error)[:120]}", flush=True)
                    continue
                if ms < best:
                    best, name = ms, plan.name
            text = f"{len(found)} plans, {1e3 * best:7.1f} us, {name[:60]}"
            return text + (f", {failed} failed" if failed else "") + self._error(form, places)

    def _time(self, run: GraphLaunch, places: dict[str, int], best: float) -> float:
        handle, room = self.context.cudnn, int(self.room.gpudata)
        with self.context.current():
            return self.clock.time(lambda: run(handle, places, room), best)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which no other program measures."""
        if not self.turns:
            yield
            return
        with Path(self.turns).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def pool(self, dtype: str) -> int:
        """The address of 1 GiB of random values."""
        if dtype not in self.pools:
            flat = np.random.default_rng(0).standard_normal(_FILL, np.float32) / 2
            part = self.device.put(flat.astype(symdnn_dtype(dtype)))
            self.pools[dtype] = self.device.put(np.zeros(_POOL_BYTES, np.uint8))
            base = int(self.pools[dtype].gpudata)
            for start in range(0, _POOL_BYTES, 2 * _FILL):
                self.device.runtime.queue.copy(base + start, int(part.gpudata), 2 * _FILL)
            self.device.sync()
        return int(self.pools[dtype].gpudata)

    def _places(self, form: FusedConv) -> dict[str, int]:
        """Addresses of all arrays, one after the other: operands in the pool of the dtype."""
        at = {False: self.pool(form.dtype), True: int(self.results.gpudata)}
        found, written = {}, {form.result, "sum", "squares"}
        for role, shape in form.shapes.items():
            found[role] = at[role in written]
            at[role in written] += -(-4 * prod(shape) // 256) * 256
        return found

    def _host(self, form: FusedConv, places: dict[str, int], role: str) -> np.ndarray:
        """An array as (pixels, channels) in float64."""
        shape = form.shapes[role]
        kept = np.empty((prod(shape) // shape[1], shape[1]), symdnn_dtype(form.dtype_of(role)))
        with self.context.current():
            self.driver.cuMemcpyDtoH(kept.ctypes.data, places[role], kept.nbytes)
        return kept.astype(np.float32)

    def _error(self, form: FusedConv, places: dict[str, int]) -> str:
        """The error of sums against those of the result that was written."""
        if "sum" not in form.shapes:
            return ""
        whole = self._host(form, places, form.result)
        total = self._host(form, places, "sum")[0]
        wrong = np.abs(total - whole.sum(0)).max() / np.abs(whole).sum(0).max()
        if form.after != "stats":
            return f", error {wrong:.0e}"
        squares = self._host(form, places, "squares")[0] / np.square(whole).sum(0) - 1
        return f", errors {wrong:.0e} {np.abs(squares).max():.0e}"


def cases(only: str, dtypes: Sequence[str]) -> Iterator[tuple[str, FusedConv]]:
    """Name and graph of each case."""
    for layer in LAYERS:
        for dtype in dtypes:
            for name, fields in FORMS.items():
                form = replace(FusedConv(layer, dtype), **fields)
                title = f"{'x'.join(map(str, layer))} {dtype} {name}"
                if re.search(only, title):
                    yield title, form


def main() -> None:
    """Print a line for each graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=3, help="the most that are timed")
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--turns", default="", help="a file: programs that have it time in turn")
    args = parser.parse_args()
    probe = Probe(args.turns)
    for title, form in cases(args.only, args.dtypes.split(",")):
        found = probe.measured(form, args.plans)
        if found.startswith("none") and (form.before or form.after):
            narrow = replace(form, between=form.dtype)
            found = "between in 16 bits: " + probe.measured(narrow, args.plans)
        print(f"{title:52} {found}", flush=True)


if __name__ == "__main__":
    main()
