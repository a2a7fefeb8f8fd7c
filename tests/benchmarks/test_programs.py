"""The programs that both libraries run: the same text trains to the same losses."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu.program_texts import PROGRAMS
from benchmarks.gpu.programs import STEPS_COMPARED, symdnn_step, torch_step

#: Those that compile in a second or two.
_QUICK = ("dlrm", "graph_network", "experts")


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS]
)
def test_both_libraries_train_alike(name):
    pytest.importorskip("torch")
    program = PROGRAMS[name]("test")
    own, other = symdnn_step(program), torch_step(program, "cpu", "eager")
    for _ in range(STEPS_COMPARED):
        np.testing.assert_allclose(float(own()), float(other()), rtol=1e-4)
