"""All convolutions of three networks: the fastest algorithms against those with the least energy.

    python -m benchmarks.gpu.net_energy FOLDER [--budget 240] [--nets alexnet,vgg16,resnet50]
                                        [--batch 64] [--report] [--pictures FOLDER]

Networks, directions and precisions are those of `benchmarks.gpu.net_algorithms`. Each convolution's
algorithms are checked and timed as by `time_once`. The energy of the fastest algorithm, and of the
next ones of other engines (at most 1.6 times slower), is read from the card's counter over 0.12 s
each; it includes idle power. FOLDER/energy.jsonl gets a line of JSON for each convolution; lines
that exist are not measured again. At the end the sums of complete networks are printed, in
milliseconds and joules: for the fastest algorithms, then for those with the least energy.
`--pictures` draws the algorithms of each network and precision, with the Pareto front of time and
workspace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu import conv_algorithms
from benchmarks.gpu import net_algorithms as nets_of
from symdnn.tuning.attempts import Attempt

_ENERGY_MS, _MOST_ENGINES, _MAX_TIME_RATIO = 120.0, 3, 1.6
_SEARCH_MS = 200.0
_SUMMED = ("fast_ms", "fast_mj", "frugal_ms", "frugal_mj")


def measured(name: str, layer: Any, direction: str, precision: str) -> dict[str, Any]:
    """The record of one convolution."""
    from symdnn.gpu.conv.bench import Bench
    from symdnn.gpu.conv.search import Search
    from symdnn.gpu.conv_table import row_of
    from symdnn.gpu.device.context import context
    from symdnn.gpu.device.energy import meter
    from symdnn.tuning import attempts

    signature, ctx = conv_algorithms.signature_of(layer, direction, precision), context()
    with ctx.current(), Bench(ctx, signature) as bench:
        bench.compute_reference()
        candidates = Search(signature, ctx.cudnn).all()
        found = attempts.measure(bench, candidates, attempts.Limits(_SEARCH_MS))
        energies = {}
        for a in fastest_of_engines(found):
            with bench.repeating(a.candidate) as enqueue:
                used = meter(ctx).millijoules(enqueue, a.ms or 1.0, _ENERGY_MS)
            energies[id(a)] = used
    rows = [(a, asdict(row_of(a))) for a in found if a.usable]
    for a, row in rows:
        row["millijoules"] = energies.get(id(a))
    return record(name, [row for _, row in rows])


def fastest_of_engines(found: Sequence[Attempt[Any]]) -> list[Attempt[Any]]:
    """The fastest attempt, then the next ones of other engines that are not too slow."""
    usable = sorted((a for a in found if a.usable), key=lambda a: a.ms or 0.0)
    engines: dict[Any, Attempt[Any]] = {}
    for a in usable:
        c = a.candidate
        engine = (c.api, c.name if c.plan is None else c.plan.engine)
        if (a.ms or 0.0) <= _MAX_TIME_RATIO * (usable[0].ms or 0.0):
            engines.setdefault(engine, a)
    return list(engines.values())[:_MOST_ENGINES]


def record(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Time and energy of the fastest algorithm and of the one with the least energy; all timed
    ones.
    """
    if not rows:
        raise RuntimeError(f"{name}: no algorithm could be measured")
    fast = min(rows, key=lambda r: r["ms"])
    frugal = min((r for r in rows if r["millijoules"] is not None), key=lambda r: r["millijoules"])
    best = {"fast": fast, "frugal": frugal}
    found: dict[str, Any] = {"case": name}
    for word, row in best.items():
        found |= {f"{word}_algorithm": row["name"], f"{word}_workspace": row["workspace_bytes"]}
        found |= {f"{word}_ms": round(row["ms"], 5), f"{word}_mj": round(row["millijoules"], 4)}
    return found | {"algorithms": [_short(r) for r in sorted(rows, key=lambda r: r["ms"])]}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table of algorithms, rounded, without what all rows have alike."""
    kept = {k: row[k] for k in ("api", "name", "number", "workspace_bytes", "deterministic")}
    digits = {k: row[k] and float(f"{row[k]:.4g}") for k in ("ms", "error", "millijoules")}
    return kept | digits


def table(rows: list[dict[str, Any]]) -> str:
    """The complete sums as a Markdown table, and the missing ones."""
    lines = [
        "| net | direction | precision | fastest: ms | J | least energy: ms | J | J saved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if not r["missing"]:
            saved = 1 - r["frugal_mj"] / r["fast_mj"]
            lines.append(
                f"| {r['net']} | {r['direction']} | {r['precision']} | "
                f"{r['fast_ms']:.2f} | {r['fast_mj'] / 1e3:.2f} | "
                f"{r['frugal_ms']:.2f} | {r['frugal_mj'] / 1e3:.2f} | {saved:.1%} |"
            )
    left = sum(r["missing"] for r in rows)
    return "\n".join([*lines, f"{left} cases are left: run it again" if left else "all measured"])


def pictures(records: dict[str, dict[str, Any]], nets: list[str], batch: int) -> Iterator[Any]:
    """(name, :class:`~symdnn.gpu.function_tables.FunctionTables`) of each network and precision."""
    from symdnn.gpu.conv_table import AlgorithmTable, TableRow
    from symdnn.gpu.function_tables import FunctionTables, LayerTable

    for net in nets:
        for precision in conv_algorithms.PRECISIONS:
            layers = []
            for name, layer, direction, own in nets_of.cases([net], batch):
                if own == precision and name in records:
                    rows = [TableRow(supported=True, **r) for r in records[name]["algorithms"]]
                    signature = conv_algorithms.signature_of(layer, direction, precision)
                    _, c, size, k, width, _, stride = layer
                    title = f"{c} to {k}, {size}, {width}x{width}" + f" / {stride}" * (stride > 1)
                    one = AlgorithmTable(signature, tuple(rows))
                    layers.append(LayerTable(title, direction, "", one))
            if layers:
                yield f"{net}-{precision}", FunctionTables(tuple(layers))


def main(argv: list[str] | None = None) -> int:
    """Measure the missing rows within the budget, then print the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=240, help="seconds")
    parser.add_argument("--nets", default=",".join(nets_of.NETS), help="with commas between them")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of all algorithms")
    args = parser.parse_args(argv)
    nets = args.nets.split(",")
    if unknown := set(nets) - set(nets_of.NETS):
        parser.error(f"no such nets: {', '.join(sorted(unknown))}")
    records = nets_of.measure_left(
        args.folder / "energy.jsonl", list(nets_of.cases(nets, args.batch)),
        0 if args.report else args.budget, measured, conv_algorithms.machine,
    )  # fmt: skip
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        for name, tables in pictures(records, nets, args.batch):
            tables.save_picture(str(args.pictures / f"algorithms-{name}.png"))
    print(table(nets_of.sums(records, nets, args.batch, _SUMMED)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
