"""Which files a steady call runs through: who follows one in a debugger has to read those."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

ROOT = Path(symdnn.__file__).parent
CALLS_BEFORE = 4  # planned, captured or bound for good, and run again


def steady_files(mode: symdnn.Mode) -> set[str]:
    """The files of symdnn of which a later call of softmax(conv2d(x, w) + b) runs code."""
    rng = new_rng()
    x = T.tensor4("x", "float32")
    w = symdnn.shared(rng.standard_normal((8, 3, 3, 3)).astype("float32"))
    b = symdnn.shared(np.ones((1, 8, 1, 1), "float32"), broadcastable=(True, False, True, True))
    y = T.nnet.softmax(T.nnet.conv2d(x, w) + b, axis=1)
    f = symdnn.function([x], y, mode=mode)
    given = rng.standard_normal((4, 3, 16, 16)).astype("float32")
    for _ in range(CALLS_BEFORE):
        f(given)
    return files_of(lambda: f(given))


def files_of(call: Any) -> set[str]:
    found: set[Path] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(Path(frame.f_code.co_filename))

    before = sys.getprofile()
    gc.disable()  # what ends of other calls' objects runs files of its own
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return {str(p.relative_to(ROOT)) for p in found if p.is_relative_to(ROOT)}


@pytest.mark.cpu
def test_of_a_cpu():
    found = steady_files(symdnn.Mode(target="cpu"))
    assert "compile/call/compiled_function.py" in found  # the fast path is generated code
    assert "compile/call/arguments.py" not in found
    assert len(found) <= 11, sorted(found)
