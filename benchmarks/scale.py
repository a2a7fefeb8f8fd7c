"""Predicts a data parallel step on many GPUs, from the plan's own buckets.

    python -m benchmarks.scale [--gpus 8..4096] [--fabric nvlink+8x400g] [--case resnet64]
        [--ms 10.1] [--check]

The training step is compiled for a described GPU and this many ranks, without the hardware. Its
nodes get estimated shares of a step's measured time on one GPU (``--ms``; else a record's). Buckets
start where the plan starts them, and are transferred one after the other, with the times of a model
of rings and trees (``benchmarks/distributed/fabric.py``); work beside a transfer is slower. The
program prints the step's time, the exposed communication, and the scaling. ``--check`` compares the
model with measurements: all-reduces, and whole steps.

Real steps are slower: the model ignores that ranks come late, and other traffic.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import symdnn
import symdnn.distributed as dist
from benchmarks.distributed.fabric import FABRICS, MEASURED, Fabric
from benchmarks.distributed.training import training_step
from benchmarks.records import table
from symdnn.compile.plan.node_costs import seconds_of
from symdnn.compile.plan.offline_plan import specialise_program
from symdnn.distributed.link import Link
from symdnn.ops.collective.overlapped import StreamStart, StreamWait, is_agreement
from symdnn.ops.collective.reductions import AllGather
from symdnn.world import process
from symdnn.world.communicator import Communicator, Solo
from symdnn.world.group import Group
from symdnn.world.launcher import Launched

__all__ = ["Bucket", "Step", "main", "planned", "predicted"]

#: Milliseconds of a step on one H200 by symdnn, and where they are recorded.
RECORDED_MS = {
    "resnet64": (10.37, "benchmarks/results, ResNet-50 b64 bf16"),
    "resnet256": (32.78, "benchmarks/results, ResNet-50 b256 bf16"),
    "gpt8": (16.78, "benchmarks/results/transformers-h200-2026-11-24.jsonl"),
}
#: The share of its speed that work has beside a transfer, whose blocks take processors of the card,
#: and its memory's bandwidth: fitted to :data:`MEASURED_STEPS`.
BESIDE = 0.2
#: (case, GPUs, milliseconds of a step of one card alone, together, record): weak scaling measured.
MEASURED_STEPS = [
    ("resnet64", 2, 9.57, 10.00, "distributed-h200-x2-2026-11-29.jsonl"),
    ("gpt8", 2, 16.12, 17.70, "distributed-h200-x2-2026-11-29.jsonl"),
    ("resnet256", 2, 32.14, 33.29, "distributed-h200-x2-2026-11-29.jsonl"),
    ("resnet64", 4, 9.28, 10.00, "distributed-h200-x4-2026-11-29.jsonl"),
    ("gpt8", 4, 16.04, 18.36, "distributed-h200-x4-2026-11-29.jsonl"),
    ("resnet256", 4, 30.85, 31.97, "distributed-h200-x4-2026-11-29.jsonl"),
]
#: Bytes and time of the agreement before updates: two words in one launch.
_AGREEMENT_BYTES = 20
_SMALL, _LARGE = 4096, 4 << 20


class Bucket(NamedTuple):
    """Bytes that are reduced together, ready after a share of the step's work; or ``gathered``,
    from each rank to all."""

    nbytes: int
    ready: float
    wanted: float
    gathered: bool = False

    def seconds(self, count: int, fabric: Fabric) -> float:
        """How long they move."""
        if self.gathered:
            return fabric.halves(self.nbytes * count, count)
        return fabric.all_reduce(self.nbytes, count)


class Step(NamedTuple):
    """The buckets of a step in their order."""

    case: str
    buckets: list[Bucket]


class _Described(process.World):
    """A world of which only this rank is there."""

    def _new_communicator(self, group: Group) -> Communicator:
        return Solo(group, 0, self.watch)


def planned(case: str, count: int, fabric: Fabric, small: bool = False) -> Step:
    """The plan of a step on one of ``count`` ranks, with buckets for this fabric."""
    before = process._current
    place = Launched(0, count, 0, min(count, fabric.gpus), "a model")
    process._current = _Described(place)
    try:
        low, high = (fabric.all_reduce(n, count) for n in (_SMALL, _LARGE))
        link = Link(low, (_LARGE - _SMALL) / (high - low))
        total = {"gpt": 498e6, "res": 102e6}[case[:3]]
        parallel = dist.DataParallel(bucket_bytes=link.bucket_bytes(int(total)))
        with symdnn.config.change_flags(amp="bf16"):
            mode = symdnn.Mode(target="cuda:sm_90")
            f, inputs, _ = training_step(case, small, parallel, mode)
        shapes = {v: v.type.shape for v in inputs}
        return Step(case, _buckets(specialise_program(f.stages.program, inputs, shapes)))
    finally:
        process._current = before


def _buckets(plans: Any) -> list[Bucket]:
    found: list[Any] = []
    done = total = 0.0
    for plan in plans:
        spec = plan.specialised
        for node in spec.segment.nodes:
            call = spec.call(node)
            if is_agreement(node):
                continue
            if isinstance(node.op, StreamStart):
                nbytes = sum(_nbytes(t) for t in call.inputs)
                gathers = isinstance(node.op.of, AllGather)
                found.append([nbytes, done, None, node.outputs[0], gathers])
            elif isinstance(node.op, StreamWait):
                for entry in found:
                    if entry[3] in node.inputs:
                        entry[2] = done
            elif node not in plan.memory.aliases:
                done += seconds_of(call, spec.segment.place)
        total = done
    return [Bucket(int(n), r / total, w / total, gathers) for n, r, w, _, gathers in found]


def _nbytes(type_: Any) -> int:
    count = 1
    for d in type_.shape:
        count *= int(d)
    return count * int(type_.numpy.itemsize)


def predicted(step: Step, ms: float, count: int, fabric: Fabric) -> tuple[float, float]:
    """(milliseconds of the step, of all transfers): work stops at a wait until its bucket came, and
    is slower while any is on its way."""
    clock = work = busy = moving = 0.0  # milliseconds; ``busy`` is the end of the last transfer
    arrived: dict[int, float] = {}
    starts = [(b.ready, 0, i) for i, b in enumerate(step.buckets)]
    for share, waits, i in sorted(
        [*starts, *((b.wanted, 1, i) for i, b in enumerate(step.buckets))]
    ):
        clock, work = _worked(clock, share * ms - work, busy), share * ms
        if waits:
            clock = max(clock, arrived[i])
            continue
        took = step.buckets[i].seconds(count, fabric) * 1e3
        moving += took
        arrived[i] = busy = max(clock, busy) + took
    clock = _worked(clock, ms - work, busy)
    agreement = fabric.all_reduce(_AGREEMENT_BYTES, count) * 1e3
    return clock + agreement, moving + agreement


def _worked(clock: float, work: float, busy: float) -> float:
    """When so much work is done that begins at ``clock``, with transfers until ``busy``."""
    beside = max(0.0, busy - clock)
    if work <= beside * BESIDE:
        return clock + work / BESIDE
    return clock + work + beside * (1 - BESIDE)


def check_steps() -> list[list[str]]:
    """Steps by the model beside measured ones."""
    body = [["GPUs", "case", "alone ms", "measured ms", "model ms", "error", "record"]]
    fabric = FABRICS["nvlink+8x400g"]
    for case, count, alone, together, record in MEASURED_STEPS:
        found, _ = predicted(planned(case, count, fabric), alone, count, fabric)
        times = [f"{ms:.2f}" for ms in (alone, together, found)]
        error = f"{100 * (found / together - 1):+.1f} %"
        body.append([f"{count}", case, *times, error, record])
    return body


def check() -> list[list[str]]:
    """All-reduces by the model beside measured ones."""
    body = [["GPUs", "MB", "measured ms", "model ms", "error", "source"]]
    fabric = FABRICS["nvlink+8x400g"]
    for m in MEASURED:
        found = fabric.all_reduce(m.nbytes, m.gpus)
        error = f"{100 * (found / m.seconds - 1):+.0f} %"
        cells = [f"{m.gpus}", f"{m.nbytes / 1e6:.0f}", f"{m.seconds * 1e3:.3f}"]
        body.append([*cells, f"{found * 1e3:.3f}", error, m.source])
    return body


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="8..4096", help="a range of powers of 2, or a list")
    parser.add_argument("--fabric", choices=FABRICS, default="nvlink+8x400g")
    parser.add_argument("--case", choices=RECORDED_MS, default="resnet64")
    parser.add_argument("--ms", type=float, help="of a step on one GPU; else a record's")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.check:
        print("\n".join([*table(check()), "", *table(check_steps())]))
        return
    ms = given.ms or RECORDED_MS[given.case][0]
    fabric = FABRICS[given.fabric]
    print(f"{given.case} on {fabric.name}: {ms:g} ms on one GPU")
    body = [["GPUs", "step ms", "exposed ms", "moving ms", "buckets", "scaling"]]
    for count in _counts(given.gpus):
        step = planned(given.case, count, fabric)
        total, moving = predicted(step, ms, count, fabric)
        cells = [f"{total:.2f}", f"{total - ms:.2f}", f"{moving:.2f}", f"{len(step.buckets)}"]
        body.append([f"{count}", *cells, f"{100 * ms / total:.1f} %"])
    print("\n".join(table(body)))


def _counts(text: str) -> list[int]:
    if ".." not in text:
        return [int(n) for n in text.split(",")]
    low, high = map(int, text.split(".."))
    found = [low]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found


if __name__ == "__main__":
    main()
