"""The peers of ``benchmarks.ops.peers`` give the numbers of the records' formulas."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.ops import natural, peers
from benchmarks.ops.program import build, drawn, operands, seen
from benchmarks.ops.retold import retold
from benchmarks.ops.rows import OTHER_DTYPES, Row, large_rows
from benchmarks.ops.sides import _PROGRAMS, _RUNS, _references, sides
from tests import op_table

#: A record for each helper that a library has a function for, and records that are told as a whole.
RECORDS = (
    "softmax_3d_axis1", "softmax_crossentropy", "bn_train_4d_spatial", "layer_norm_two_axes",
    "bn_train_axis_1_2", "set_subtensor", "inc_advanced", "max_advanced", "mul_advanced",
    "pool_max_cut", "pool_sum_padded", "pool_average_exc_pad_padded", "pool_average_inc_pad_cut",
    "attention_plain", "attention_window", "attention_bool_mask", "neibs_overlap", "erf", "gamma",
    "gammainc_of_both", "betainc", "tri_gamma", "lfilter_across", "owens_t", "jv", "iv", "psi",
    "zeta", "ndtri", "cbrt", "logsoftmax", "logcumsumexp_near", "chi2sf", "softmax_f32",
)  # fmt: skip


CASES = {case.id: case for case in op_table.load()}


#: Those that a library has no function for.
LACKING = {
    "numpy": set[str](),
    "jax": {"neibs_overlap", "lfilter_across", "owens_t", "jv", "iv"},
    "torch": {"pool_max_cut", "pool_sum_padded", "pool_average_exc_pad_padded", "betainc", "cbrt",
              "lfilter_across", "owens_t", "jv", "iv"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("library", "name"), [(n, r) for n, lacks in LACKING.items() for r in RECORDS if r not in lacks]
)
def test_a_library_gives_the_numbers_of_the_formula(library, name):
    if library != "numpy":
        pytest.importorskip(library)
    row = Row(CASES[name], "float32", "contiguous", "small", "forward")
    given = operands(row)
    program = _PROGRAMS[library](row, given.views, [])
    found = _RUNS[library](program, given.arrays, True)
    for a, b in zip(found, _references(row, given), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, 2e-3, 2e-3)


@pytest.mark.parametrize("library", ["numpy", "jax", "torch"])
def test_what_stands_for_a_helper_is_there(library):
    if library != "numpy":
        pytest.importorskip(library)
    assert len(natural.of(library)) > 10
    case = CASES["softmax_3d_axis1"]
    if library == "numpy":
        arrays = drawn(case)
        told = retold(case.expected, {}, natural.of(library))
        np.testing.assert_allclose(told(*arrays), case.expected(*arrays), 1e-6)


def test_rows_of_other_dtypes_and_orders_are_right():
    rows = large_rows(5, 40, OTHER_DTYPES, ("strided",), "small")
    assert {r.order for r in rows} == {"strided"}
    for dtype in OTHER_DTYPES:
        made = build(Row(CASES["add"], dtype, "strided", "small", "forward"))
        assert made.error(made.function(*made.arrays)) <= 1e-2


def test_numpy_is_a_peer_of_forward_rows():
    row = Row(CASES["exp"], "float32", "transposed", "small", "forward")
    assert "numpy" in sides(row)
    assert "numpy" not in sides(replace(row, direction="gradient"))


def test_an_operand_is_a_view_of_what_is_passed():
    for order in ("transposed", "strided"):
        given = operands(Row(CASES["add"], "float32", order, "small", "forward"))
        for passed, how, own in zip(given.arrays, given.views, given.record):
            np.testing.assert_array_equal(seen(passed, how), own)


@pytest.mark.parametrize(("took", "wanted"), [([0.3, 0.01], 2.5), ([0.3, 0.2], 200.0)])
def test_one_long_call_is_not_the_time_of_a_row(monkeypatch, took, wanted):
    now, left = [0.0], list(took)
    monkeypatch.setattr(peers.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(peers.pcommon, "time_loop", lambda *_, **__: {"ms": 2.5})
    worker = object.__new__(peers._Worker)
    worker.device = SimpleNamespace(on_gpu=True)
    worker.run_of = SimpleNamespace(sync=lambda: None)

    def call():
        now[0] += left.pop(0)

    assert worker._ms(call) == pytest.approx(wanted)
    assert not left


@pytest.mark.parametrize(
    ("device", "flags"), [("cuda", "device=cuda,performance=max"), ("cpu", "device=cpu")]
)
def test_processes_begin_with_the_flags(monkeypatch, device, flags):
    """symdnn reads them when it is imported, which a process does before it knows its arguments."""
    found = []

    def children(commands, *seconds):
        found.append(os.environ["SYMDNN_FLAGS"])
        return [], []

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(peers.in_turn, "children", children)
    peers.main(["--device", device])
    assert found[0].startswith(flags)
