"""symdnn, PyTorch and JAX on all workloads, one process at a time, alternated; resumable.

    python -m benchmarks.gpu.run [--out FOLDER] [--budget 450] [--prio 1] [--only REGEX]

For each family of cases symdnn, torch and jax run in turn. Every result is a JSON line that is
appended to ``FOLDER/PROGRAM.jsonl``. A case with a result is skipped, so the same command continues
after an interruption, until it prints that nothing is left. ``--again`` measures all cases again.
Then ``python -m benchmarks.gpu.report FOLDER/*.jsonl`` prints the table.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
ROOT = WORKLOADS.parents[1]

#: No program is started with fewer seconds left: loading and calibrating take a good part of them.
LEAST = 25


@dataclass(frozen=True)
class Program:
    """One process: who runs, which part of the cases, where its results go."""

    peer: str
    script: str
    part: str

    @property
    def name(self) -> str:
        """The name of its file of results."""
        return f"{self.peer}-{self.part.replace(',', '-') or self.script}"

    def command(self) -> list[str]:
        """The command line, without options."""
        if self.peer == "symdnn":
            words = [sys.executable, "-m", "benchmarks.gpu.symdnn_cases"]
        else:
            words = [sys.executable, str(WORKLOADS / f"{self.script}.py")]
        return [*words, "--part", self.part] if self.part else words


#: Family -> programs, in the order in which they alternate.
FAMILIES: dict[str, tuple[Program, ...]] = {
    "small": (
        Program("symdnn", "", "net,rnn,dispatch"),
        Program("torch", "peers_torch_small", "net,rnn,dispatch"),
        Program("jax", "peers_jax", "small"),
    ),
    "micro": (
        Program("symdnn", "", "micro"),
        Program("torch", "peers_micro", "op"),
        Program("jax", "peers_jax", "micro"),
    ),
    "conv": (
        Program("symdnn", "", "conv"),
        Program("torch", "peers_torch_convnets", "eager"),
        Program("jax", "peers_jax", "conv"),
        Program("torch", "peers_torch_convnets", "compile"),
    ),
    "first": (
        Program("symdnn", "", "first"),
        Program("torch", "peers_compile_time", ""),
    ),
}


@dataclass(frozen=True)
class Case:
    """A line of a program's ``--list``: its key is what ``--only`` and ``--skip`` see."""

    key: str
    seconds: float

    @property
    def results(self) -> set[tuple[str, str]]:
        """The (case, peer) pairs that it makes."""
        case, _, peers = self.key.rpartition(" ")
        return {(case, peer) for peer in peers.split(",")}


def cases_of(program: Program, options: Sequence[str]) -> list[Case]:
    """The cases that the program would run with these options."""
    command = [*program.command(), *options, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return list(listed(done.stdout))


def listed(text: str) -> Iterator[Case]:
    """The cases of a listing."""
    for line in text.splitlines():
        found = re.match(r"prio +\d+ est +(\d+)s (.{10}) (\S+) +(\S+)$", line)
        if found and found[3] != "calibrate":
            yield Case(f"{found[3]} {found[4]}", float(found[1]))


def finished(path: Path) -> set[tuple[str, str]]:
    """The (case, peer) pairs that have a result in a file; an error is one too."""
    found: set[tuple[str, str]] = set()
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the process was stopped while it wrote
            continue
        case = str(record.get("case"))
        for peer in str(record.get("peer")).split(","):
            found.add((case, peer))
        if case.startswith("copy_"):
            found.add(("copy", peer))
    return found


def left_of(cases: Sequence[Case], done: set[tuple[str, str]]) -> list[Case]:
    """The cases of which some result is missing."""
    return [c for c in cases if not c.results <= done]


def skipping(cases: Sequence[Case], left: Sequence[Case]) -> list[str]:
    """Options that exclude finished cases; the calibration always runs."""
    done = [re.escape(c.key) for c in cases if c not in left]
    return ["--skip", f"^(?:{'|'.join(done)})$"] if done else []


def run_program(
    program: Program, options: Sequence[str], folder: Path, seconds: float, again: bool
) -> list[Case]:
    """Run the unfinished cases of a program for at most this long; returns those that are left."""
    out = folder / f"{program.name}.jsonl"
    cases = cases_of(program, options)
    left = cases if again else left_of(cases, finished(out))
    if not left or seconds < LEAST:
        return left
    budget = min(seconds, sum(c.seconds for c in left) * 1.5 + 20)
    words = [*program.command(), *options, *skipping(cases, left), "--quiet", "--out", str(out)]
    begin = time.perf_counter()
    print(f"-- {program.name}: {len(left)} cases, {budget:.0f} s", flush=True)
    try:
        subprocess.run(
            [*words, "--budget", f"{budget:.0f}"], cwd=ROOT, check=False, timeout=budget + 40,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"   {program.name} was stopped", flush=True)
    left = left_of(cases, finished(out))
    print(f"   {time.perf_counter() - begin:.0f} s, {len(left)} left", flush=True)
    return left


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("record"))
    parser.add_argument("--budget", type=float, default=440, help="seconds for this command")
    parser.add_argument("--families", default=",".join(FAMILIES), help="which, and in which order")
    parser.add_argument("--who", default="symdnn,torch,jax")
    parser.add_argument("--again", action="store_true", help="measure finished cases again, too")
    parser.add_argument("--only", default="", help="regular expression on 'case peers'")
    parser.add_argument("--prio", type=int, default=1, help="cases up to this priority")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    begin = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    options = ["--prio", str(args.prio), "--device", args.device]
    options += ["--only", f"calibrate|{args.only}"] * bool(args.only) + ["--tiny"] * args.tiny
    missing = 0
    for family in args.families.split(","):
        for program in FAMILIES[family]:
            if program.peer not in args.who.split(","):
                continue
            seconds = args.budget - (time.perf_counter() - begin)
            left = run_program(program, options, args.out.resolve(), seconds, args.again)
            missing += len(left)
    print("nothing is left" if not missing else f"{missing} cases are left: run this again")


if __name__ == "__main__":
    main()
