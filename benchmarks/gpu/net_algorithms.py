"""All convolutions of three networks: the sum of `time_once`'s times against PyTorch's benchmark
mode.

    python -m benchmarks.gpu.net_algorithms FOLDER [--budget 240] [--nets alexnet,vgg16,resnet50]
                                            [--batch 64] [--tune-ms 300] [--report]

AlexNet, VGG-16 and ResNet-50 at 224x224: forward and both gradients in float32, TF32 and bfloat16
(channels last). Equal convolutions of a network are measured once and counted as often as they
occur, each timed as in `benchmarks.gpu.conv_algorithms`. FOLDER/cases.jsonl gets a line of JSON for
each. Lines that exist are not measured again, so the same command continues after it has stopped at
its budget (seconds). At the end the sums of complete networks are printed as a table of
docs/algorithms.md and written to FOLDER/sums.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import conv_algorithms
from benchmarks.gpu.conv_algorithms import DIRECTIONS, PRECISIONS
from symdnn.config import config

#: Channels, size, kernels, their size, pad, stride.
Layer = tuple[int, int, int, int, int, int]
Measure = Callable[[str, Any, str, str], dict[str, Any]]

ALEXNET: list[Layer] = [
    (3, 224, 64, 11, 2, 4), (64, 27, 192, 5, 2, 1), (192, 13, 384, 3, 1, 1),
    (384, 13, 256, 3, 1, 1), (256, 13, 256, 3, 1, 1),
]  # fmt: skip
#: Blocks of VGG-16: size, channels, convolutions.
_VGG16 = ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3))
#: Stages of ResNet-50: size, channels inside of a block, blocks, stride of the first.
_RESNET50 = ((56, 64, 3, 1), (28, 128, 4, 2), (14, 256, 6, 2), (7, 512, 3, 2))


def vgg16() -> Iterator[Layer]:
    """The convolutions of VGG-16."""
    channels = 3
    for size, width, count in _VGG16:
        for _ in range(count):
            yield channels, size, width, 3, 1, 1
            channels = width


def resnet50() -> Iterator[Layer]:
    """The convolutions of ResNet-50, the strides in the 3x3 ones."""
    yield 3, 224, 64, 7, 3, 2
    channels = 64
    for size, width, blocks, first in _RESNET50:
        for block in range(blocks):
            stride = first if block == 0 else 1
            before = size * stride
            yield channels, before, width, 1, 0, 1
            yield width, before, width, 3, 1, stride
            yield width, size, 4 * width, 1, 0, 1
            if block == 0:
                yield channels, before, 4 * width, 1, 0, stride
            channels = 4 * width


NETS = {"alexnet": ALEXNET, "vgg16": list(vgg16()), "resnet50": list(resnet50())}


def cases(nets: list[str], batch: int) -> Iterator[tuple[str, tuple[int, ...], str, str]]:
    """Name, layer as `conv_algorithms` has it, direction, precision; equal ones once.

    The first layer of a network needs no gradient of the input.
    """
    seen = set()
    for net in nets:
        for precision in PRECISIONS:
            for direction in DIRECTIONS:
                for layer in dict.fromkeys(NETS[net]):
                    name = name_of(layer, batch, direction, precision)
                    if name not in seen and not _is_left_out(layer, direction):
                        seen.add(name)
                        yield name, (batch, *layer), direction, precision


def name_of(layer: Layer, batch: int, direction: str, precision: str) -> str:
    """The name of a case."""
    return f"{'x'.join(map(str, (batch, *layer)))}/{direction}/{precision}"


def _is_left_out(layer: Layer, direction: str) -> bool:
    return direction == "bwd_data" and layer[0] == 3


def sums(
    records: Mapping[str, dict[str, Any]],
    nets: list[str],
    batch: int,
    fields: Sequence[str] = ("symdnn_ms", "torch_ms"),
) -> list[dict[str, Any]]:
    """The sums of ``fields`` over all convolutions of each network, direction and precision.

    ``missing`` counts the different convolutions without a record; then there are no sums.
    """
    rows = []
    for net in nets:
        for direction in DIRECTIONS:
            for precision in PRECISIONS:
                count = Counter(v for v in NETS[net] if not _is_left_out(v, direction))
                found = {v: records.get(name_of(v, batch, direction, precision)) for v in count}
                row = {
                    "net": net, "direction": direction, "precision": precision,
                    "convolutions": sum(count.values()),
                    "missing": sum(r is None for r in found.values()),
                }  # fmt: skip
                if not row["missing"]:
                    for name in fields:
                        total = sum(n * (found[v] or {})[name] for v, n in count.items())
                        row[name] = round(total, 3)
                rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The complete rows as a Markdown table, and the missing ones."""
    lines = [
        "| net | direction | precision | convolutions | `time_once`, ms | PyTorch, ms | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if not r["missing"]:
            lines.append(
                f"| {r['net']} | {r['direction']} | {r['precision']} | {r['convolutions']} | "
                f"{r['symdnn_ms']:.2f} | {r['torch_ms']:.2f} | "
                f"{r['torch_ms'] / r['symdnn_ms']:.2f} |"
            )
    left = sum(r["missing"] for r in rows)
    return "\n".join([*lines, f"{left} cases are left: run it again" if left else "all measured"])


def measure_left(
    path: Path, wanted: list[tuple[str, tuple[int, ...], str, str]], budget_s: float,
    measure: Measure, machine: Callable[[], dict[str, Any]],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Measure the cases that ``path`` has not, within the budget; all records by name.

    A case that fails is recorded with its ``error`` in the file, and tried again by the next run.
    """
    end = time.monotonic() + budget_s
    records: dict[str, dict[str, Any]] = {}
    if path.exists():
        lines = map(json.loads, path.read_text().splitlines())
        records = {line["case"]: line for line in lines if "error" not in line}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for case in wanted:
            if case[0] in records:
                continue
            if time.monotonic() > end:
                break
            if "info" not in records:
                records["info"] = machine()
                print(json.dumps(records["info"]), file=file)
            try:
                found = records[case[0]] = measure(*case)
            except (RuntimeError, MemoryError) as error:
                found = {"case": case[0], "error": str(error).splitlines()[0][:200]}
            print(json.dumps(found), file=file, flush=True)
    return records


def main(argv: list[str] | None = None) -> int:
    """Measure the missing rows within the budget, then print the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=240, help="seconds")
    parser.add_argument("--nets", default=",".join(NETS), help="with commas between them")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tune-ms", type=int, default=300, help="of dnn.conv.time_budget")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    args = parser.parse_args(argv)
    nets = args.nets.split(",")
    if unknown := set(nets) - set(NETS):
        parser.error(f"no such nets: {', '.join(sorted(unknown))}; there are {', '.join(NETS)}")
    with config.change_flags({"dnn.conv.time_budget": args.tune_ms}):
        records = measure_left(
            args.folder / "cases.jsonl", list(cases(nets, args.batch)),
            0 if args.report else args.budget, conv_algorithms.measured, conv_algorithms.machine,
        )  # fmt: skip
    rows = sums(records, nets, args.batch)
    (args.folder / "sums.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
