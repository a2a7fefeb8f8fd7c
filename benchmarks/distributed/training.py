"""Data parallel training compared with training on single cards: time of a step, scaling, memory.

    PYTHONPATH=. symdnn launch -n 2 benchmarks/distributed/training.py OUT.jsonl
        [--cases gpt8,resnet64,resnet256] [--variants FLAGS;FLAGS] [--seconds 80] [--small]

All ranks first run the one-GPU program at the same time, without collectives, then the same network
with ``distributed=True``. A row has the milliseconds of a step on the slowest rank for both, their
ratio (weak scaling), and their difference, the exposed communication. It also has the megabytes of
each bucket, how many nodes run between its start and its wait, the first losses, and what NCCL has
registered. The networks are those of
PyTorch's record (ResNet-50 in bf16, a GPT of 12 layers, SGD with momentum). Each of ``--variants``
adds a row with its flags, such as ``distributed.reduce_dtype=bfloat16;distributed.overlap=False``;
``shard=optimizer`` in one of them shards the optimiser's state, and
``shard=parameters,keep_gathered=True`` the parameters, which a step gathers once. The case
``gpt7b4`` trains 7e9 sharded parameters, and compares its memory with the prediction. The most
important rows come first.
No case begins after ``--seconds``. A row that takes longer than ``--row-seconds`` ends the program
with its stack. ``--small`` checks the program on small networks, on CPUs by MPI too.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

_FLAGS = "performance=max,amp=bf16,print_active_device=False,distributed.timeout=60"
_BEGAN = time.monotonic()
_RATE, _MOMENTUM = 0.01, 0.9
_WARM_CALLS, _WINDOWS, _WINDOW_S = 6, 5, 0.25
_LOSSES = 4

Step = Callable[[], Any]


def _placed(value: Any) -> Any:
    """An array on the device."""
    import symdnn

    v = symdnn.tensor.TensorType(str(value.dtype), (None,) * value.ndim)("v")
    return symdnn.function([v], symdnn.Out(v * 1, borrow=True))(value)


def _wait(result: Any) -> float:
    """Read a loss, which waits for the device."""
    import numpy as np

    return float(np.asarray(result.get() if hasattr(result, "get") else result))


def training_step(
    case: str, small: bool, distributed: Any, mode: Any = None
) -> tuple[Any, list[Any], list[Any]]:
    """(a training step's function, its inputs, values for them)."""
    import numpy as np

    import symdnn
    import symdnn.tensor as T
    from symdnn import nn

    nn.init.seed(3)
    rng = np.random.default_rng(5)
    if case.startswith("gpt"):
        batch, length = int(case.split("b")[-1].removeprefix("gpt")), 16 if small else 1024
        size = {"words": 64, "width": 32, "layers": 2, "heads": 2} if small else {"words": 50304}
        if case.startswith("gpt7b") and not small:
            size = {**size, "width": 4096, "layers": 32, "heads": 32}
        net: Any = filled(lambda: nn.models.gpt2(context=length, dropout=0.0, **size))
        x = T.tensor("int64", (batch, length), name="x")
        t = T.tensor("int64", (batch, length), name="t")
        scores = net(x)
        scores = scores.reshape((-1, scores.shape[2]))
        values = [rng.integers(0, size["words"], (batch, length)) for _ in range(2)]
    else:
        batch, side = int(case[6:]), 32 if small else 224
        if small:
            width = 8
            net = nn.Sequential(
                nn.Conv2d(3, width, 3), nn.SpatialBatchNormalization(width), nn.ReLU(),
                nn.Flatten(), nn.Linear(width * (side - 2) ** 2, 1000),
            )  # fmt: skip
        else:
            net = nn.models.resnet50()
        x = T.tensor("float32", (batch, side, side, 3), name="x")  # channels last, as the peer's
        t = T.tensor("int32", (batch,), name="t")
        scores = net(x.dimshuffle(0, 3, 1, 2))
        images = rng.standard_normal((batch, side, side, 3), np.float32)
        values = [images, rng.integers(0, 1000, (batch,)).astype(np.int32)]
    loss = nn.CrossEntropyCriterion()(scores, t.flatten())
    updates = nn.optim.sgd(loss, net.train(), _RATE, momentum=_MOMENTUM, distributed=distributed)
    given = [symdnn.In(v, borrow=True) for v in (x, t)]
    out = symdnn.Out(loss, borrow=True)
    return symdnn.function(given, out, updates=updates, name=case, mode=mode), [x, t], values


def filled(build: Callable[[], Any]) -> Any:
    """A network whose matrices repeat one block of normal numbers: 7e9 draws take a minute."""
    import numpy as np

    from symdnn import nn

    with nn.init.skipped():
        net = build()
    block = 0.02 * np.random.default_rng(7).standard_normal(1_000_003, np.float32)
    for name, p in net.named_parameters().items():
        shape = p.get_value(borrow=True).shape
        if len(shape) > 1:
            p.set_value(np.resize(block, shape), borrow=True)
        elif name.endswith("weight"):
            p.set_value(np.ones(shape, np.float32), borrow=True)
    return net


def made(case: str, small: bool, distributed: Any) -> tuple[Step, Any]:
    """(a training step on data that stays on the device, its function)."""
    f, _, values = training_step(case, small, distributed)
    given = [_placed(v) for v in values]
    return lambda: f(*given), f


def milliseconds(step: Step, losses: list[float] | None = None) -> tuple[float, float]:
    """(the median of a step's windows, the first call's seconds); all ranks measure together.

    ``losses`` gets those of the first calls: as it is, captured, replayed.
    """
    import symdnn.distributed as dist

    began = time.perf_counter()
    loss = _wait(step())
    first = time.perf_counter() - began
    if losses is not None:
        losses += [loss, *(_wait(step()) for _ in range(_LOSSES - 1))]
    for _ in range(_WARM_CALLS):
        result = step()
    _wait(result)
    began = time.perf_counter()
    _wait(step())
    own = time.perf_counter() - began
    count = max(1, int(_WINDOW_S / max(_shared(own), 1e-6)))
    windows = []
    for _ in range(_WINDOWS):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(count):
            result = step()
        _wait(result)
        windows.append((time.perf_counter() - began) / count * 1e3)
    return statistics.median(windows), first


def _shared(value: float) -> float:
    """The largest of all ranks' numbers."""
    return max(gathered(value))


def gathered(value: Any) -> list[Any]:
    """All ranks' values."""
    from symdnn.world import process

    return process.current().gather("benchmark", value)


def used_gb(f: Any) -> float:
    """Bytes in use of symdnn's allocator."""
    use = f.device_memory()
    return round((use.arena + use.live) / 1e9, 2) if use else 0.0


def rows(case: str, small: bool, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For each variant a row of single cards, once, and one of all together; a row of the links."""
    import symdnn.distributed as dist
    from symdnn.config import config

    if case == "links":
        yield links(small)
        return
    if case.startswith("gpt7b"):
        yield in_parts(case, small)
        return
    step, f = made(case, small, False)
    one, first_one = milliseconds(step)
    memory_one = used_gb(f)
    f.free()
    del step, f
    gc.collect()
    alone = {"ms_alone": _shared(one), "first_alone_s": _shared(first_one), "gb_alone": memory_one}
    for flags in variants:
        words = dict(pair.split("=") for pair in flags.split(",") if pair)
        parallel = dist.DataParallel(
            shard=words.pop("shard", None), keep_gathered="keep_gathered" in words
        )
        words.pop("keep_gathered", None)
        with config.change_flags(**words):
            yield {"flags": flags, **together(case, small, alone, parallel)}


def together(case: str, small: bool, alone: dict[str, Any], parallel: Any) -> dict[str, Any]:
    """One row, beside that of the same cards alone."""
    import symdnn.distributed as dist

    step, f = made(case, small, parallel)
    losses: list[float] = []
    many, first = milliseconds(step, losses)
    report = f.distributed_report()
    buckets = report.rows
    found = {
        "world": dist.size(), "case": case, "ms": _shared(many), **alone,
        "first_s": _shared(first), "gb": used_gb(f), "mb": sum(r.bytes for r in buckets) / 1e6,
        "bucket_mb": [round(r.bytes / 1e6, 2) for r in buckets],
        "meanwhile": [r.meanwhile for r in buckets],
        "losses": [round(x, 6) for x in losses], "registered": "; ".join(report.registered),
        "graph": "; ".join(str(getattr(p.bound, "capture_state", "")) for p in f.plans()),
    }  # fmt: skip
    found["exposed_ms"] = found["ms"] - found["ms_alone"]
    found["scaling"] = found["ms_alone"] / found["ms"]
    f.free()
    del step, f
    gc.collect()
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


def in_parts(case: str, small: bool) -> dict[str, Any]:
    """A network that trains with sharded parameters, and its memory.

    ``gb_kept`` is the memory that a rank needs at least: its part of the parameters and of the
    momentum.
    """
    import symdnn.distributed as dist
    from symdnn.sharding.storage import layout_of

    step, f = made(case, small, dist.DataParallel(shard="parameters"))
    losses = [_wait(step())]
    many, _ = milliseconds(step)
    losses.append(_wait(step()))
    shared = [v for v in f.get_shared() if layout_of(v) is None]
    kept = sum(math.prod(v.storage.shape) * v.type.numpy.itemsize for v in shared)
    return {
        "world": dist.size(), "case": case, "ms": _shared(many), "losses": losses,
        "gb_kept": kept / 1e9, "gb": used_gb(f),
    }  # fmt: skip


def links(small: bool) -> dict[str, Any]:
    """An all-reduce by size, as symdnn's programs call it."""
    import numpy as np

    import symdnn
    import symdnn.distributed as dist

    found: dict[str, Any] = {"world": dist.size(), "case": "all_reduce_fp32"}
    for megabytes in (1, 102) if not small else (1,):
        x = symdnn.shared(np.zeros(megabytes * 250_000, np.float32))
        seen = symdnn.shared(np.float32(0))
        total = dist.all_reduce(x, "mean")
        f = symdnn.function([], symdnn.Out(seen + 1, borrow=True), updates=[(x, total)])
        ms = _shared(milliseconds(f)[0])
        found[f"ms_{megabytes}_mb"] = round(ms, 4)
    return found


def _in_time(found: Iterator[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
    """The rows; one that takes longer ends the program."""
    one: dict[str, Any] | None = {}
    while one is not None:
        faulthandler.dump_traceback_later(seconds, exit=True)
        one = next(found, None)
        faulthandler.cancel_dump_traceback_later()
        if one is not None:
            yield one


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--cases", default="gpt8,resnet64,resnet256")
    parser.add_argument("--variants", default="", help="flags of further rows, divided by ;")
    parser.add_argument("--only-variants", action="store_true", help="no row without flags")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--row-seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    own = os.environ.get("SYMDNN_FLAGS", "")
    os.environ["SYMDNN_FLAGS"] = ",".join(w for w in ("device=cuda", _FLAGS, own) if w)

    import symdnn.distributed as dist

    dist.init()

    def put(found: dict[str, Any]) -> None:
        found["t"] = round(time.monotonic() - _BEGAN, 1)
        if dist.is_main():
            print(json.dumps(found), flush=True)
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")

    for case in [*given.cases.split(","), "links"]:
        if _shared(time.monotonic() - _BEGAN) > given.seconds:
            put({"case": case, "skipped": f"it would begin after {given.seconds:g} s"})
            continue
        variants = given.variants.split(";") if given.variants else []
        variants = variants if given.only_variants else ["", *variants]
        for one in _in_time(rows(case, given.small, variants), given.row_seconds):
            put(one)
    dist.barrier()


if __name__ == "__main__":
    main()
