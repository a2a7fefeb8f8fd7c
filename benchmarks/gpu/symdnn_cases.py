"""symdnn on all workloads: times, losses beside the reference ones, memory, first call.

    python -m benchmarks.gpu.symdnn_cases [--part net,conv,rnn,dispatch,micro,first] [--only REGEX]

Options and records are those of the peers' programs (``benchmarks/workloads/README.md``). ``peer``
is ``symdnn``, or ``symdnn.shared`` if the inputs of an operation are shared variables, so that
nothing is copied to the device. ``--device cpu --tiny`` runs small sizes on a CPU.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu import device as devices
from benchmarks.workloads import pcommon, pspec

DTYPES = {"tf32": "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: Losses of steps 0 to 3 on batches 0 to 3 (``benchmarks/workloads/README.md``), in float32.
REFERENCE = {
    ("lenet5", 64): (2.32553, 2.30326, 2.31107, 2.31812),
    ("mlp", 128): (2.30641, 2.35883, 2.37467, 2.36534),
    ("resnet50", 8): (6.89305, 6.94125, 6.75725, 6.80470),
    ("vgg16", 2): (9.77911, 6.40019, 8.86075, 8.53975),
}
TOLERANCE = {"tf32": 0.01, "bf16": 0.02}


class NotAvailable(Exception):
    """This version of symdnn can't run the case."""


class Cases:
    """Everything that the cases share: the suite, the device, the networks."""

    def __init__(self, suite: pcommon.Suite) -> None:
        self.suite, self.tiny = suite, suite.tiny
        self.device: devices.Device | None = None
        image = 64 if self.tiny else 224
        self.nets = {
            "lenet5": pspec.lenet5(),
            "mlp": pspec.mlp((784, 64, 64, 10)) if self.tiny else pspec.mlp(),
            "vgg16": pspec.vgg16(image),
            "resnet50": pspec.resnet50(image),
        }

    def start(self) -> devices.Device:
        """The device, created for the first case: ``--list`` loads nothing."""
        if self.device is None:
            self.device = devices.Device(not self.suite.cpu, self.suite.a.min_time)
            self.suite.cleanup = self.device.cleanup
        return self.device

    def calibrate(self) -> None:
        """The record of versions and ceilings."""
        self.suite.info(**devices.facts(self.start()))

    # -- networks ---------------------------------------------------------------------------------

    def net(
        self, name: str, batch: int, mode: str, precision: str, layout: str, prio: int, est: int,
        part: str, ring: int, check: bool = False,
    ) -> None:  # fmt: skip
        """Add a network's case."""
        key = f"{name}/b{batch}/{mode}/{precision}/{layout}" + ("/check" if check else "")
        shown = batch if not self.tiny or check else min(batch, 4)
        run = partial(self._run_net, name, shown, mode, precision, layout, ring, check)
        self.suite.add(key, "symdnn", run, prio, est, part)

    def _run_net(
        self, name: str, batch: int, mode: str, precision: str, layout: str, ring: int, check: bool
    ) -> dict[str, Any]:
        device = self.start()
        for other, net in self.nets.items():
            if other != name:
                net.drop_init()
        job = NetJob(self.nets[name], device, batch, mode, precision, layout, ring)
        record = job.first()
        record.update(compare(record.get("losses"), name, batch, precision, self.tiny, ring))
        if check:
            return {**record, "items": batch}
        record.update(device.time(job, latency=mode == "infer" or batch <= 64))
        record.update(job.memory())
        end = job.value()
        record["end"] = end
        if not np.isfinite(end):
            record["note"] = "NOT FINITE"
        flop = job.net.train_gflop(batch) if mode == "train" else job.net.fwd_gflop(batch)
        return {**record, "items": batch, "gflop": flop, "graph": graph_state(job.function)}

    # -- recurrent nets ---------------------------------------------------------------------------

    def rnn(self, kind: str, size: str, precision: str, mode: str, prio: int, est: int) -> None:
        """Add a case of a recurrent network."""
        sizes = dict(pspec.RNN_BIG if size == "big" else pspec.RNN_DOC)
        key = f"{kind}_{size}/b{sizes['B']}/{mode}/{precision}/tnc"
        if self.tiny:
            sizes.update(inp=8, hid=8, T=4, B=2)
        run = partial(self._run_rnn, kind, sizes, precision, mode)
        self.suite.add(key, "symdnn", run, prio, est, "rnn")

    def _run_rnn(
        self, kind: str, sizes: dict[str, int], precision: str, mode: str
    ) -> dict[str, Any]:
        device = self.start()
        f, call, ring, begin = self.recurrent(kind, sizes, DTYPES[precision], mode)
        call()
        device.sync()
        record: dict[str, Any] = {"first_s": time.perf_counter() - begin}
        y = call.out if mode == "fwd" else call.out[0]
        record["chk"] = float(np.abs(device.get(y)).mean())
        record.update(device.time(call, latency=True))
        flop = pspec.rnn_gflop(
            kind, sizes["inp"], sizes["hid"], sizes["layers"], sizes["T"], sizes["B"]
        ) * (1 if mode == "fwd" else 3)
        record.update(memory_of([f], ring))
        return {**record, "items": sizes["B"], "gflop": flop, "graph": graph_state(f)}

    def recurrent(
        self, kind: str, sizes: dict[str, int], dtype: str, mode: str
    ) -> tuple[Any, Rotating, list[list[Any]], float]:
        """(function, a step, the ring, when compiling began) of a recurrent network."""
        from benchmarks.gpu import symdnn_nets

        narrow, ring = symdnn_nets.symdnn_dtype(dtype), []
        for i in range(4):
            pair = pspec.rnn_data(sizes["T"], sizes["B"], sizes["inp"], sizes["hid"], i)
            ring.append([self.start().put(a.astype(narrow)) for a in pair])
        args = [pair[:1] if mode == "fwd" else pair for pair in ring]
        begin = time.perf_counter()
        f = symdnn_nets.rnn_function(kind, sizes, dtype, mode != "fwd")
        return f, Rotating([partial(f, *a) for a in args]), ring, begin

    # -- dispatch ---------------------------------------------------------------------------------

    def dispatch(self, kind: str, count: int, trusted: bool) -> None:
        """Add the cost of a call of ``count`` small operations."""
        peer = "symdnn.trusted" if trusted else "symdnn"
        run = partial(self._run_dispatch, kind, count, trusted)
        self.suite.add(f"dispatch/{kind}{count}", peer, run, 1, 4, "dispatch")

    def _run_dispatch(self, kind: str, count: int, trusted: bool) -> dict[str, Any]:
        from benchmarks.gpu import symdnn_nets

        device = self.start()
        shape: Any = (32, 32) if kind == "mm" else 1024
        x = device.put(np.random.default_rng(7).standard_normal(shape, dtype=np.float32))
        begin = time.perf_counter()
        f = symdnn_nets.dispatch_function(kind, count)
        f.trust_input = trusted
        for _ in range(4):
            f(x)
        device.sync()
        first = time.perf_counter() - begin
        r = device.time(partial(f, x), min_time=0.3 if not self.tiny else 0.02)
        through = r["ms"] * 1e3
        latency = pcommon.latency(partial(f, x), device.sync, 50) * 1e3
        return {
            "us_issue": r["host_us"], "us_thru": through, "us_lat": latency, "first_s": first,
            "graph": graph_state(f),
        }  # fmt: skip

    # -- single operations ------------------------------------------------------------------------

    def micro(
        self, name: str, precision: str, layout: str, mode: str, units: tuple[int, int],
        prio: int = 1,
    ) -> None:  # fmt: skip
        """Add an operation; ``units`` are the bytes it must move, in sizes of x and of y."""
        for peer in ("symdnn", "symdnn.shared"):
            run = partial(self._run_micro, name, precision, layout, mode, units, peer)
            key = "/".join(word for word in (name, mode, precision, layout) if word)
            self.suite.add(key, peer, run, prio, 4, "micro")

    def operation(self, name: str, precision: str, layout: str, mode: str) -> Any:
        """The operation of a row, to be prepared."""
        from benchmarks.gpu.symdnn_ops import Operation

        op, shape = OPERATIONS[name]
        if self.tiny:
            shape = tuple(min(d, 8) for d in shape) if len(shape) > 1 else (1 << 16,)
        dtype, backward = DTYPES[precision], mode == "fwdbwd"
        return Operation(self.start(), op, shape, dtype, layout, backward, self.tiny)

    def _run_micro(
        self, name: str, precision: str, layout: str, mode: str, units: tuple[int, int], peer: str
    ) -> dict[str, Any]:
        work = self.operation(name, precision, layout, mode)
        record = work.prepare(peer == "symdnn.shared")
        call = Rotating(work.calls)
        for _ in range(3 * len(work.calls)):
            call()
        record.update(self.start().time(call, min_time=0.25))
        elements = units[0] * np.prod(work.shape) + units[1] * np.prod(work.y_shape)
        gb = float(elements) * work.dtype.itemsize / 1e9
        return {**record, "gb": gb, "graph": graph_state(work.functions[0])}

    # -- fresh processes --------------------------------------------------------------------------

    def first_call(self, name: str, batch: int, precision: str, layout: str) -> None:
        """Add the time until the first step's result, in a fresh process with cold caches."""
        key = f"compile_time/{name}_b{batch}_train_{precision}"
        run = partial(self._run_first, name, batch, precision, layout)
        self.suite.add(key, "symdnn", run, 1, 30, "first")

    def _run_first(self, name: str, batch: int, precision: str, layout: str) -> dict[str, Any]:
        words = [name, str(4 if self.tiny else batch), precision, layout]
        command = [sys.executable, "-m", "benchmarks.gpu.symdnn_cases", "--child", *words]
        command += ["cpu" if self.suite.cpu else "cuda", "tiny" if self.tiny else "full"]
        with tempfile.TemporaryDirectory() as cold:
            flags = os.environ.get("SYMDNN_FLAGS", "")
            env = {**os.environ, "SYMDNN_FLAGS": f"{flags},base_compiledir={cold}".strip(",")}
            env["CUDA_CACHE_PATH"] = os.path.join(cold, "driver")
            limit = max(10.0, min(240.0, self.suite.left() - 3))
            begin = time.perf_counter()
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, cwd=devices.ROOT, check=False,
                timeout=limit,
            )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError((done.stderr or done.stdout)[-250:])
        record = json.loads(done.stdout.splitlines()[-1])
        return {**record, "process_s": time.perf_counter() - begin}


class Rotating:
    """Calls one after another, around and around; ``out`` is the last result."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self._calls, self.out = itertools.cycle(calls), None

    def __call__(self) -> None:
        self.out = next(self._calls)()


class NetJob:
    """A network, compiled and with its ring of batches on the device; a call is a step."""

    def __init__(
        self, net: pspec.Net, device: devices.Device, batch: int, mode: str, precision: str,
        layout: str, ring: int,
    ) -> None:  # fmt: skip
        from benchmarks.gpu import symdnn_nets

        self.net, self.device, self.mode = net, device, mode
        narrow = DTYPES[precision]
        amp = mode == "train" and precision != "tf32"
        model = symdnn_nets.Model(net, "float32" if mode == "train" else narrow, mode == "train")
        build = symdnn_nets.train_function if mode == "train" else symdnn_nets.infer_function
        self.ring = list(self._batches(batch, symdnn_nets.symdnn_dtype(narrow), layout, ring))
        device.sync()
        self.begin = time.perf_counter()
        self.function = self._compiled(partial(build, model, narrow, layout), amp, narrow)
        self.build_s = time.perf_counter() - self.begin
        self._next = Rotating([partial(self.function, *b) for b in self.ring])

    def _compiled(self, build: Callable[[], Any], amp: bool, narrow: str) -> Any:
        if not amp:
            return build()
        import symdnn

        if not self.device.on_gpu:
            raise NotAvailable("mixed precision is for the CUDA target")
        with symdnn.config.change_flags(amp="bf16" if narrow == "bfloat16" else "fp16"):
            function = build()
        inputs = {v.type.dtype for n in function.stages.fgraph.nodes if is_product(n.op) for v in
                  n.inputs[:2]}  # fmt: skip
        if narrow not in inputs:
            raise NotAvailable(f"amp: no product or convolution of {narrow} in the function")
        return function

    def _batches(self, batch: int, dtype: Any, layout: str, ring: int) -> Iterator[tuple[Any, ...]]:
        for i in range(ring):
            images, labels = self.net.data(batch, i)
            if layout == "nhwc" and images.ndim == 4:
                images = images.transpose(0, 2, 3, 1)
            on_device = self.device.put(images.astype(dtype))
            if self.mode == "train":
                yield on_device, self.device.put(labels.astype(np.int32))
            else:
                yield (on_device,)
        self.net.drop_data()

    def __call__(self) -> None:
        self._next()

    def value(self) -> float:
        """The last loss, or the mean absolute score."""
        return float(np.abs(self.device.get(self._next.out)).mean())

    def first(self) -> dict[str, Any]:
        """Four calls: seconds to the first result (with compiling) and to the fourth; losses."""
        losses = []
        for i in range(4):
            self()
            self.device.sync()
            if i == 0:
                first = time.perf_counter() - self.begin
            losses.append(self.value())
        ready = time.perf_counter() - self.begin
        record = {"first_s": first, "ready_s": ready, "compile_s": self.build_s}
        record.update(loss0=losses[0], loss3=losses[3])
        return {**record, "losses": losses} if self.mode == "train" else record

    def memory(self) -> dict[str, Any]:
        """Peak memory of the steady state, the ring included."""
        return memory_of([self.function], self.ring)


def is_product(op: Any) -> bool:
    """Whether an op multiplies matrices or convolves."""
    return bool(re.search("Conv|Dot|Gemm", type(op).__name__))


def compare(
    losses: list[float] | None, name: str, batch: int, precision: str, tiny: bool, ring: int
) -> dict[str, Any]:
    """Whether the losses are the reference's, where there are some for this network and batch."""
    known = REFERENCE.get((name, batch))
    if losses is None or known is None or (tiny and name == "mlp"):
        return {}
    off = max(abs(a - b) / abs(b) for a, b in zip(losses, known[:ring], strict=False))
    right = off <= TOLERANCE[precision]
    return {"loss_off": off, **({} if right else {"note": f"WRONG LOSS: {losses}"})}


def memory_of(functions: list[Any], ring: Any) -> dict[str, Any]:
    """MB of the plans' arena, of results, of shared variables, and of the ring."""
    reports = [f.memory_report() for f in functions]
    own = max(r.arena for r in reports) + sum(r.made_per_call + r.shared for r in reports)
    held = sum(int(a.nbytes) for args in ring for a in args)
    return {
        "mem_mb": (own + held) / 1e6,
        "workspace_mb": max(r.workspaces for r in reports) / 1e6,
    }


def graph_state(function: Any) -> str:
    """``captured``, or why a plan was not; empty on a CPU."""
    found = set()
    for plan in function.plans():
        state = getattr(plan.bound, "capture_state", "")
        if state:
            found.add(state)
    return "; ".join(sorted(found))


# -- all of them ----------------------------------------------------------------------------------


def networks(cases: Cases) -> None:
    """LeNet and the perceptron."""
    for batch, mode in itertools.product((64, 1024), ("train", "infer")):
        cases.net("lenet5", batch, mode, "tf32", "nchw", 1, 8, "net", 8)
    cases.net("mlp", 128, "train", "tf32", "nd", 1, 8, "net", 8)


def images(cases: Cases) -> None:
    """ResNet and VGG."""
    for batch in (1, 64):
        for precision, layout in (("tf32", "nchw"), ("bf16", "nhwc")):
            cases.net("resnet50", batch, "infer", precision, layout, 1, 15, "conv", 2)
    for name, batch in (("resnet50", 64), ("vgg16", 64), ("resnet50", 256)):
        for precision, layout in (("tf32", "nchw"), ("bf16", "nhwc")):
            cases.net(name, batch, "train", precision, layout, 1, 45, "conv", 2)
    cases.net("vgg16", 64, "infer", "tf32", "nchw", 1, 15, "conv", 2)
    cases.net("vgg16", 64, "infer", "bf16", "nhwc", 1, 15, "conv", 2)
    cases.net("resnet50", 64, "train", "tf32", "nhwc", 2, 20, "conv", 2)
    cases.net("resnet50", 8, "train", "tf32", "nchw", 2, 15, "conv", 4, check=True)
    cases.net("resnet50", 8, "train", "bf16", "nhwc", 2, 15, "conv", 4, check=True)
    cases.net("vgg16", 2, "train", "tf32", "nchw", 2, 15, "conv", 4, check=True)


def sequences(cases: Cases) -> None:
    """The recurrent networks."""
    for mode in ("fwd", "fwdbwd"):
        cases.rnn("lstm", "doc", "tf32", mode, 1, 4)
        cases.rnn("gru", "doc", "tf32", mode, 2, 4)
        for precision in ("tf32", "fp16", "bf16"):
            for kind in ("lstm", "gru"):
                cases.rnn(kind, "big", precision, mode, 1 if precision != "bf16" else 2, 6)


#: name of the row -> (the operation in ``symdnn_nets``, the shape of x in NCHW order)
OPERATIONS: dict[str, tuple[str, tuple[int, ...]]] = {
    "ewchain_64M": ("chain", (1 << 26,)),
    "softmax_4096x1024": ("softmax", (4096, 1024)),
    "softmax_64x21x256x256": ("softmax", (64, 21, 256, 256)),
    "bn_64x256x56x56": ("batch_norm", (64, 256, 56, 56)),
    "maxpool_64x64x112x112": ("pooled", (64, 64, 112, 112)),
    "bnrelu_64x256x56x56": ("batch_norm_relu", (64, 256, 56, 56)),
}


def operations(cases: Cases) -> None:
    """Softmax, batch normalisation, pooling, the elementwise chain."""
    cases.micro("ewchain_64M", "fp32", "", "fwd", (2, 0))
    for precision, layout in (("tf32", "nchw"), ("bf16", "nhwc")):
        for mode, two, pool in (("fwd", (2, 0), (1, 1)), ("fwdbwd", (5, 0), (2, 2))):
            for name in list(OPERATIONS)[1:]:
                where = "rows" if name == "softmax_4096x1024" else layout
                units = pool if name.startswith("maxpool") else two
                cases.micro(name, precision, where, mode, units, 3 if "bnrelu" in name else 1)


def child(name: str, batch: str, precision: str, layout: str, where: str, size: str) -> None:
    """Measure one network's first calls in this process, and print the record."""
    begin = time.perf_counter()
    devices.set_flags(where == "cuda")
    import symdnn.tensor  # noqa: F401

    imported = time.perf_counter()
    device = devices.Device(where == "cuda")
    device.sync()
    started = time.perf_counter()
    nets = {"resnet50": pspec.resnet50, "vgg16": pspec.vgg16}
    net = nets[name](64 if size == "tiny" else 224)
    job = NetJob(net, device, int(batch), "train", precision, layout, 2)
    record = job.first()
    job()
    device.sync()
    record.update(import_s=imported - begin, init_s=started - imported, items=int(batch))
    print(json.dumps(pcommon.sig(record)))


def main() -> None:
    """The command line."""
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :])
        return
    suite = pcommon.Suite("symdnn", parts=("net", "conv", "rnn", "dispatch", "micro", "first"))
    if not suite.a.list:
        devices.set_flags(not suite.cpu)
    cases = Cases(suite)
    suite.add("calibrate", "symdnn", cases.calibrate, 1, 3)
    networks(cases)
    sequences(cases)
    for kind, count, trusted in itertools.product(("ew", "mm"), (1, 100), (False, True)):
        cases.dispatch(kind, count, trusted)
    operations(cases)
    images(cases)
    for precision, layout in (("tf32", "nchw"), ("bf16", "nhwc")):
        cases.first_call("resnet50", 64, precision, layout)
    suite.run()


if __name__ == "__main__":
    main()
