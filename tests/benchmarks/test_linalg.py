"""Rows of ``benchmarks.linalg``: results are NumPy's and SciPy's, and the GPU's program runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from benchmarks import linalg
from benchmarks.cpu import nest

ROWS = {r.name: r for r in nest.rows_of("")}
SMALL = [n for n in ROWS if re.match(r"linalg .* float64 (16x16|1000x8x8)$", n)]


def computed(row):
    arrays = [make() for make in row.arrays]
    inputs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    outs = row.symdnn(*inputs)
    outs = list(outs) if isinstance(outs, list | tuple) else [outs]
    return arrays, symdnn.function(inputs, outs)(*arrays)


@pytest.mark.parametrize("name", [n for n in SMALL if ROWS[n].numpy and "1000" not in n])
def test_both_sides_of_a_row_compute_the_same(name):
    arrays, found = computed(ROWS[name])
    wanted = ROWS[name].numpy(*arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(abs(a), abs(b), rtol=1e-6, atol=1e-9)  # vectors have no sign


def test_loops_compute_the_recurrence():
    (x, h), (found,) = computed(ROWS["scan exponential averages 2000 steps, 64"])
    for k in range(2000):
        h = 0.9 * h + 0.1 * x[k]
    np.testing.assert_allclose(found[-1], h, rtol=1e-4, atol=1e-5)
    (h, w), (found,) = computed(ROWS["scan power of a matrix 50 steps, 32x32"])
    wanted = h @ np.linalg.matrix_power(w.astype("float64"), 50)
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3 * abs(wanted).max())


def test_the_program_of_a_gpu_runs_and_says_what_it_left_out(capsys, monkeypatch):
    monkeypatch.setenv("SYMDNN_FLAGS", "")
    only = "^linalg (cholesky|inv) float64 (4x4|16x16)$"
    assert (
        linalg.main(["--device", "cuda", "--tiny", "--seconds-in-all", "900", "--only", only]) == 0
    )
    text = capsys.readouterr().out
    assert "4 rows, 0 left out" in text
    assert "FAIL" not in text
    linalg.main(["--device", "cuda", "--tiny", "--only", only, "--seconds-in-all", "0"])
    assert "0 rows, 4 left out" in capsys.readouterr().out
