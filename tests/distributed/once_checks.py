"""What ranks do together once: kernels are compiled, and choices measured, by one rank for all."""

import os
from pathlib import Path

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import compile_queue, jit
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import Question, answer
from symdnn.world import process

FOLDER = Path(os.environ["SYMDNN_CHECKPOINTS"])


class Named(Question[str]):
    """Each rank would choose a candidate of its own."""

    family = "a test"
    measurements = 0

    def __init__(self, signature):
        self.key = {"signature": signature}

    def measured(self):
        Named.measurements += 1
        return [Attempt(f"of rank {dist.rank()}", 1.0, 0.0)], ""

    def record(self, best):
        return {"name": best.candidate, "ms": best.ms}

    def revived(self, record):
        return Attempt(record["name"], record["ms"], 0.0)


def check_choices_are_measured_by_one_rank_and_shared():
    """Also where each rank's own disk knows something else, or nothing."""
    with config.change_flags(**{"dnn.conv.tuning_cache": str(FOLDER / f"tuning{dist.rank()}")}):
        found = [answer(Named(k)).attempt.candidate for k in range(6)]
    world = process.current()
    assert world.gather("candidates", found) == [found] * dist.size()
    assert sum(world.gather("measurements", Named.measurements)) == 6
    return {}


def check_kernels_are_compiled_by_one_rank():
    """From an empty cache: every module by one rank alone, and all ranks compute the same."""
    compiled, here, elsewhere = [], jit._compile, compile_queue._compile_in
    jit._compile = lambda text: compiled.append(1) or here(text)
    compile_queue._compile_in = lambda process, text: compiled.append(1) or elsewhere(process, text)
    x = T.matrix("x")
    value = np.arange(400_000, dtype="float32").reshape(1000, 400) / 1e5
    try:
        f = symdnn.function([x], [T.exp(x) * T.tanh(x) + 7, (x * T.sin(x)).sum(axis=1)])
        first, second = f(value)
    finally:
        jit._compile, compile_queue._compile_in = here, elsewhere
    np.testing.assert_allclose(first, np.exp(value) * np.tanh(value) + 7, rtol=1e-4)
    np.testing.assert_allclose(second, (value * np.sin(value)).sum(axis=1), rtol=1e-3)
    counts = process.current().gather("modules", len(compiled))
    stored = len(list((FOLDER / "code").rglob("*.o")))
    assert sum(counts) == stored > 0, (counts, stored)
    assert not list((FOLDER / "code").rglob("*.lock"))
    return {}
