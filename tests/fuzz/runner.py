"""Running cases of areas, in one process or several, and reporting what they found."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from symdnn.config import config
from tests.fuzz import device
from tests.fuzz.areas import SHARES, Area, Context, Failure, load
from tests.fuzz.record import write_record


@dataclass(frozen=True)
class Options:
    """The command line (see ``__main__``)."""

    area: str = "all"
    seconds: float = 0
    seed: int | None = None
    count: int = 0
    first: int = 0
    only: int | None = None
    device: str = ""
    processes: int = 1
    prepare: str = ""
    cache: str = ""
    out: str = ""
    stride: int = 1

    def areas(self) -> list[str]:
        if self.area != "all":
            if not (area := load(self.area)).is_there:
                raise SystemExit(f"{self.area} compares with {area.needs}, which is not installed")
            return [self.area]
        there = [a for a in SHARES if load(a).is_there]
        return [a for a in there if load(a).on_device or not (self.device or self.prepare)]


@dataclass
class Outcome:
    """What a run of one area tried, and what was wrong."""

    area: str
    seed: int
    unit: str
    tried: int = 0
    cases: int = 0
    seconds: float = 0.0
    failures: list[Failure] = None  # type: ignore[assignment]


def run(options: Options) -> int:
    """Run, print, and return the number of failures as an exit status (at most 1)."""
    if options.cache:
        device.cache_environment(options.cache)
    if options.seed is None:
        options = replace(options, seed=secrets.randbelow(1_000_000))
    print(f"seed {options.seed}", flush=True)
    if options.processes > 1:
        outcomes = _in_processes(options)
    else:
        _set_up(options)
        outcomes = [run_area(a, options) for a in options.areas()]
    for o in outcomes:
        rate = o.tried / max(o.seconds, 1e-9)
        print(f"{o.area}: {o.tried} {o.unit} in {o.cases} cases, {len(o.failures)} failures, "
              f"{o.seconds:.0f} s ({rate:.1f}/s)", flush=True)  # fmt: skip
    if options.out:
        write_record(Path(options.out), options, outcomes)
    return int(any(o.failures for o in outcomes))


def _set_up(options: Options) -> None:
    """Flags of the whole process, before anything is compiled."""
    device.use(options.device, options.prepare)


def run_area(name: str, options: Options) -> Outcome:
    """Cases of one area, one after the other."""
    area = load(name)
    out = Outcome(name, options.seed or 0, area.unit, failures=[])
    started = time.monotonic()
    counts: dict[str, int] = {}
    for index in _indices(options, name, started, counts, area.unit):
        ctx = Context(name, options.seed or 0, index, options.device, bool(options.prepare), counts)
        _progress(name, index)
        with config.change_flags(on_opt_error="raise"):  # a rewrite that fails is wrong
            failures = _check(area, ctx)
        for failure in failures:
            if failure.message:
                out.failures.append(failure)
                print(f"\n--- {failure.text()}", flush=True)
        out.cases += 1
        out.tried = counts.get(area.unit, out.cases)
        out.seconds = time.monotonic() - started
    return out


def _check(area: Area, ctx: Context) -> list[Failure]:
    """What a case finds; one that the fuzzer itself does not survive is a failure, too."""
    try:
        return area.check(ctx)
    except Exception:
        return [ctx.fail("the fuzzer raises", traceback.format_exc())]


def _indices(
    options: Options, name: str, started: float, counts: dict[str, int], unit: str
) -> Iterator[int]:
    if options.only is not None:
        yield options.only
        return
    seconds = options.seconds or (0 if options.count else 60)
    if options.area == "all":
        seconds *= SHARES[name] / sum(SHARES[a] for a in options.areas())
    index = options.first
    while not (seconds and time.monotonic() - started > seconds):
        if options.count and counts.get(unit, 0) >= options.count:
            return
        yield index
        index += options.stride


_WHERE = "SYMDNN_FUZZ_PROGRESS"


def _progress(area: str, index: int) -> None:
    """Say to the parent, if there is one, which case comes now: a crash is then known."""
    path = os.environ.get(_WHERE)
    if path:
        Path(path).write_text(json.dumps([area, index]))


def _in_processes(options: Options) -> list[Outcome]:
    """The cases dealt out to processes; one that dies is a failure, and goes on behind its case."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_Worker(options, k, Path(folder)) for k in range(options.processes)]
        while any(not w.done() for w in jobs):
            time.sleep(0.2)
        found = [o for w in jobs for o in w.outcomes()]
    merged: dict[str, Outcome] = {}
    for o in found:
        m = merged.setdefault(o.area, Outcome(o.area, o.seed, o.unit, failures=[]))
        m.tried, m.cases = m.tried + o.tried, m.cases + o.cases
        m.seconds = max(m.seconds, o.seconds)
        m.failures += o.failures
    return list(merged.values())


class _Worker:
    """One process and its restarts."""

    def __init__(self, options: Options, k: int, folder: Path) -> None:
        self.folder, self.k, self.starts = folder, k, 0
        share = -(-options.count // options.processes) if options.count else 0
        self.options = replace(
            options, first=options.first + k, stride=options.processes, count=share, processes=1,
            out="",
        )  # fmt: skip
        self.deaths: list[Failure] = []
        self.started = time.monotonic()
        self._start()

    def _start(self) -> None:
        self.starts += 1
        name = f"{self.k}.{self.starts}"
        self.at, self.result = self.folder / f"{name}.at", self.folder / f"{name}.json"
        env = {**os.environ, _WHERE: str(self.at), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.fuzz.worker", json.dumps(asdict(self.options))]
        self.process = subprocess.Popen([*command, str(self.result)], env=env)

    def done(self) -> bool:
        if self.process.poll() is None:
            return False
        if self.result.exists():
            return True
        area, index = json.loads(self.at.read_text()) if self.at.exists() else ("start", -1)
        self.deaths.append(
            Failure(area, self.options.seed or 0, index, f"process died: {self.process.returncode}")
        )
        print(f"\n--- {self.deaths[-1].text()}", flush=True)
        if index < 0 or len(self.deaths) > 20:
            return True
        self.options = replace(self.options, first=index + self.options.stride)
        self._start()
        return False

    def outcomes(self) -> list[Outcome]:
        found = []
        if self.result.exists():
            for o in json.loads(self.result.read_text()):
                failures = [Failure(**f) for f in o.pop("failures")]
                found.append(Outcome(**o, failures=failures))
        by_area: dict[str, Any] = {o.area: o for o in found}
        for death in self.deaths:
            if death.area in by_area:
                by_area[death.area].failures.append(death)
            else:
                found.append(Outcome(death.area, death.seed, "cases", failures=[death]))
        return found
