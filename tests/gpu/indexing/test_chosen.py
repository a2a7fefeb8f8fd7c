"""Kernels that find where a mask holds, in the emulator: sizes around parts, alignment, bytes."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.indexing.chosen import ChosenKernel
from symdnn.ops.lowered.of_values import PART, ChosenCounts, ChosenPlaces
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

needs_emulator = pytest.mark.skipif(not emulator.AVAILABLE, reason="the emulator needs g++")
SIZES = (0, 1, 15, 16, 17, 1000, PART - 1, PART, PART + 1, 3 * PART + 5)


@needs_emulator
@pytest.mark.parametrize("chance", [0.0, 0.03, 0.5, 1.0])
def test_places_of_masks_of_all_sizes(chance):
    kernel, rng = ChosenKernel(), new_rng()
    for size in SIZES:
        mask = rng.random(size) < chance
        call = concrete(ChosenCounts(), [mask])
        (counts,), _ = emulator.run(kernel, call, [mask])
        np.testing.assert_array_equal(counts, call.op.reference(mask))
        given = [mask, np.cumsum(counts), np.int64(counts.sum())]
        call = concrete(ChosenPlaces(), given)
        (places,), _ = emulator.run(kernel, call, given)
        np.testing.assert_array_equal(places, np.flatnonzero(mask))


@needs_emulator
def test_masks_that_begin_anywhere():
    kernel, rng = ChosenKernel(), new_rng()
    whole = rng.random(2 * PART + 3) < 0.4
    mask = whole[1:]
    call = concrete(ChosenCounts(), [mask])
    (counts,), _ = emulator.run(kernel, call, [mask])
    np.testing.assert_array_equal(counts, call.op.reference(mask))
