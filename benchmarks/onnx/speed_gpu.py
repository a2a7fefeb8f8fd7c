"""Time of a call of exported networks on a GPU: symdnn beside PyTorch, with arrays on the card.

The rows that benchmarks/results has not yet, of twelve networks (a command ends within 240 s; the
same command goes on where it stopped):

    cp benchmarks/results/onnx-h200-2026-11-28.jsonl "$OUT/onnx-h200.jsonl"
    python benchmarks/onnx/speed_gpu.py --out "$OUT/onnx-h200.jsonl"

where symdnn, torch, torchvision, timm, transformers and onnx are installed. Others:

python benchmarks/onnx/speed_gpu.py [NAME ...] [--device cuda] [--batches 1 32]
    [--dtypes float32 bfloat16] [--peers graph eager compile] [--lanes 8] [--budget 225]
    [--compile-limit 30] [--out FILE]
python benchmarks/onnx/speed_gpu.py --small      # the program on a CPU

Processes export the networks of timed.py with random weights and run each in float32 without TF32.
Rows go in groups of ``--lanes``. The rows of a group are prepared at the same time: each has a
process for each side (speed_gpu_sides.py), which says how far its result is from that; algorithms
are measured by one process at a time (but ``compile``). Then nothing but the timing runs: the sides
of a row in turn.
``eager`` is PyTorch, ``graph`` is the eager call captured by hand in a CUDA graph, ``compile`` is
``torch.compile(mode="reduce-overhead")``, which has ``--compile-limit`` seconds for a row. Images
lie with channels last for PyTorch. float32 may use TF32 on every side. Of a row are printed
milliseconds of a call that is waited for, of one in a loop that is not, and quotients: above 1
symdnn is faster than the peer. Rows go to ``--out`` as they finish; those that are there are left
out. First come single images in float32 and batches in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NAMES = (
    "resnet50", "vit_b_32", "bert_6", "gpt2_6", "convnext_tiny", "mobilenet_v3_large",
    "efficientnet_b0", "llama_8", "swin_t", "regnet_y_400mf", "lstm", "densenet121",
)  # fmt: skip
SMALL = ("mobilenet_v3_large", "lstm", "llama_8")
ROUNDS = 3
#: A result is wrong that is so many times farther off than the worst peer's, and this besides.
TIMES_OFF, ALSO_OFF = 3.0, 2e-3
Row = dict[str, Any]


def environment() -> dict[str, str]:
    """Where a process of this benchmark finds its modules, and symdnn."""
    own = [str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in own if p)}


class Side:
    """A process that runs a side; it is begun again after a row that took too long."""

    def __init__(self, kinds: str, lane: int, args: argparse.Namespace) -> None:
        self.kinds, self.device, self.folder = kinds, args.device, args.folder
        self.limit = args.compile_limit if kinds == "compile" else args.limit
        self.log = args.folder / f"{kinds}-{lane}.log"
        self.start()

    def start(self) -> None:
        code = "import sys, speed_gpu_sides as s; s.child(*sys.argv[1:])"
        command = [sys.executable, "-c", code, self.kinds, self.device, str(self.folder)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment(),
            )  # fmt: skip

    def ask(self, question: list[Any]) -> None:
        self.asked = time.perf_counter()
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the answer will say so

    def answer(self) -> Row:
        """A record for each of the side's kinds."""
        out = self.process.stdout
        assert out is not None, "the process was begun with a pipe"
        left = self.asked + self.limit - time.perf_counter()
        if not select.select([out], [], [], max(0.0, left))[0]:
            return self._again("ran past its limit")
        line = out.readline()
        found = json.loads(line) if line else self._again("the process ended")
        every = found.pop("every", None)
        return {k: every for k in self.kinds.split("+")} if every else found

    def _again(self, why: str) -> Row:
        self.process.kill()
        self.process.wait()
        self.start()
        return {k: {"error": f"{why}, see {self.log}"} for k in self.kinds.split("+")}


def lanes(args: argparse.Namespace) -> list[list[Side]]:
    """The sides of each lane; eager calls and those of a captured graph share a process."""
    plain = "+".join(k for k in ("eager", "graph") if k in args.peers)
    kinds = [k for k in ("symdnn", plain, "compile" if "compile" in args.peers else "") if k]
    return [[Side(k, lane, args) for k in kinds] for lane in range(args.lanes)]


def prepare(sides: list[list[Side]], group: list[list[Any]]) -> list[Row]:
    """Rows with the first results of all sides."""
    for lane, question in zip(sides, group):
        for s in lane:
            s.ask(question)
    rows = []
    for lane, question in zip(sides, group):
        row: Row = dict(zip(("network", "batch", "dtype"), question))
        for s in lane:
            row.update(s.answer())
        rows.append(row)
    return rows


def take_times(lane: list[Side], row: Row) -> None:
    """Medians of rounds, in which the sides take turns."""
    times: dict[str, list[Row]] = {}
    for _ in range(ROUNDS):
        for s in lane:
            if all("error" in row[k] for k in s.kinds.split("+")):
                continue
            s.ask([])
            for kind, record in s.answer().items():
                times.setdefault(kind, []).append(record)
    for kind, records in times.items():
        for k in ("ms", "row_ms"):
            if all(k in r for r in records):
                row[kind][k] = round(statistics.median(r[k] for r in records), 4)
    off = [r["off"] for k, r in row.items() if k != "symdnn" and isinstance(r, dict) and "off" in r]
    if off and "off" in row["symdnn"]:
        row["wrong"] = not row["symdnn"]["off"] <= TIMES_OFF * max(off) + ALSO_OFF


def quotients(row: Row, peers: list[str]) -> dict[str, float]:
    """A peer's time over symdnn's, of those that have one."""
    own = row["symdnn"].get("ms")
    return {p: row[p]["ms"] / own for p in peers if own and "ms" in row.get(p, {})}


def shown(row: Row, peers: list[str]) -> str:
    """A row as a line."""
    words = [f"{row['network']:18} b{row['batch']:<3} {row['dtype']:8}"]
    for who in ("symdnn", *peers):
        r = row[who]
        words.append(f"{who} {r['ms']:.3f} {r['row_ms']:.3f} off {r['off']:.0e} ({r['first_s']} s)"
                     if "ms" in r else f"{who} {r.get('error', 'no time')}")  # fmt: skip
    words += [f"{p} {q:.2f}" for p, q in quotients(row, peers).items()]
    if row.get("wrong"):
        words.append("WRONG")
    return "  ".join(words)


def planned(args: argparse.Namespace, rows: list[Row]) -> list[list[Any]]:
    """The rows to measure, those first that say most."""
    first, *others = args.batches
    kind, *kinds = args.dtypes
    ways = [(first, kind), *((b, d) for b in others for d in kinds)]
    ways += [(b, d) for b in args.batches for d in args.dtypes if (b, d) not in ways]
    there = {(r["network"], r["batch"], r["dtype"]) for r in rows if "ms" in r["symdnn"]}
    return [[n, b, d] for b, d in ways for n in args.names if (n, b, d) not in there]


def measure(
    sides: list[list[Side]], exporting: list[Any], asked: list[list[Any]], args: argparse.Namespace
) -> list[Row]:
    """All rows that the budget allows."""
    rows = []
    for k in range(0, len(asked), args.lanes):
        group = asked[k : k + args.lanes]
        for name, batch, _ in group:
            while not Path(f"{args.folder}/{name}-b{batch}.npz").exists():
                if all(e.poll() is not None for e in exporting):
                    raise SystemExit(f"{name} was not exported, see {args.folder}/export-*.log")
                time.sleep(0.02)
        print(f"# {time.perf_counter() - args.begin:.0f} s: {len(group)} rows", flush=True)
        found = prepare(sides, group)
        print(f"# {time.perf_counter() - args.begin:.0f} s: prepared", flush=True)
        for lane, row in zip(sides, found):
            take_times(lane, row)
            print(shown(row, args.peers), flush=True)
            if args.out:
                with args.out.open("a") as file:
                    print(json.dumps(row), file=file)
            rows.append(row)
            if time.perf_counter() - args.begin > args.budget:
                print(f"the budget is spent: {len(asked) - len(rows)} rows are left", flush=True)
                return rows
    return rows


def recorded(out: Path | None) -> list[Row]:
    """The rows of earlier runs."""
    if out is None or not out.exists():
        return []
    return [json.loads(line) for line in out.read_text().splitlines()]


def summary(rows: list[Row], peers: list[str]) -> None:
    """Geometric means of the quotients, of each peer and of the best one."""
    all_of = [quotients(r, peers) for r in rows]
    for who in (*peers, "the best"):
        qs = [min(q.values()) if who == "the best" else q.get(who) for q in all_of if q]
        good = [q for q in qs if q]
        if good:
            mean = statistics.geometric_mean(good)
            print(
                f"{who}: geometric mean of {len(good)} quotients {mean:.2f}, least {min(good):.2f}"
            )


def exporters(names: list[str], args: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Processes that export the networks."""
    code = "import sys, speed_gpu_sides as s; d, f, n, b = sys.argv[1:]\n"
    code += "s.exports(d, f, n.split(), [int(i) for i in b.split()])"
    found = []
    for k in range(min(args.lanes, len(names))):
        own, batches = names[k :: args.lanes], " ".join(map(str, args.batches))
        command = [
            sys.executable,
            "-c",
            code,
            args.device,
            str(args.folder),
            " ".join(own),
            batches,
        ]
        with (args.folder / f"export-{k}.log").open("w") as log:
            found.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment()))
    return found


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a few rows on the CPU")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--peers", nargs="*", default=["graph", "eager", "compile"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "onnx-speed")
    parser.add_argument("--lanes", type=int, help="rows that are prepared at the same time")
    parser.add_argument("--budget", type=float, default=225, help="seconds for all rows")
    parser.add_argument("--limit", type=float, default=60, help="seconds to prepare a row")
    parser.add_argument("--compile-limit", type=float, default=30, help="of torch.compile")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.begin = time.perf_counter()
    args.device = "cpu" if args.small else args.device
    args.names = args.names or list(SMALL if args.small else NAMES)
    args.batches = args.batches or ([1, 2] if args.small else [1, 32])
    args.lanes = args.lanes or (8 if args.device == "cuda" else 1)
    return args


def main() -> None:
    """Exports, measures and prints, as the options say."""
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2" if args.device == "cuda" else "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    rows = recorded(args.out)
    asked = planned(args, rows)
    exporting = exporters(list(dict.fromkeys(n for n, *_ in asked)), args)
    sides = lanes(args) if asked else []
    try:
        summary(rows + measure(sides, exporting, asked, args), args.peers)
    finally:
        for process in [*exporting, *(s.process for lane in sides for s in lane)]:
            process.kill()


if __name__ == "__main__":
    main()
