"""Areas, failures, and the list of areas."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: The share of each area in the time of a run of all of them.
SHARES = {"expressions": 4, "gradients": 4, "indexing": 3, "scans": 2, "jitted": 2, "layers": 2,
          "sparse": 1, "vmaps": 2, "lanes": 1, "transforms": 1, "densities": 1, "checkpoints": 1,
          "files": 1, "flags": 1, "faults": 1, "threads": 1, "memory": 1}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """Something wrong: which case of which area, what, and Python that shows it."""

    area: str
    seed: int
    index: int
    message: str
    script: str = ""

    def text(self) -> str:
        head = f"{self.area} --seed {self.seed} --only {self.index}: {self.message}"
        return f"{head}\n\n{self.script}\n" if self.script else head


@dataclass(frozen=True)
class Context:
    """The context of a case: its generator, the mode to compile with, and the numbers so far."""

    area: str
    seed: int
    index: int
    device: str = ""
    prepare: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(self.area.encode()), self.seed, self.index])

    def fail(self, message: str, script: str = "") -> Failure:
        return Failure(self.area, self.seed, self.index, message, script)

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + n


@dataclass(frozen=True)
class Area:
    """``check`` runs one case and returns its fault; it counts its tries under ``unit``."""

    name: str
    unit: str
    check: Callable[[Context], list[Failure]]
    #: How many cases the tests run.
    in_tests: int
    on_device: bool = False
    #: A package that it cannot do without.
    needs: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def error_text(error: BaseException) -> str:
    """An error's class and first line, and where in symdnn it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f"{f.filename.partition('symdnn/')[2]}:{f.lineno}" for f in frames
              if "symdnn/" in f.filename and "/tests/" not in f.filename]  # fmt: skip
    first = " / ".join(line.strip() for line in str(error).splitlines()[:4])[:400]
    return f"{type(error).__name__}: {first}" + (f" (at {inside[-1]})" if inside else "")


def load(name: str) -> Area:
    """An area by its name."""
    module: Any = importlib.import_module(f"tests.fuzz.{name}")
    area: Area = module.AREA
    return area
