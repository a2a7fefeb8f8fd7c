"""The same losses and parameters for 1, 2 and 4 ranks at the same global batch."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed import harness
from tests.environment import environment


def of_one(folder, only=(), device="cpu", module="train_checks"):
    """What one process finds, without a launcher."""
    out = folder / "checks1"
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tests.distributed.run_checks",
        out,
        ",".join(only),
    ]
    env = environment(SYMDNN_CHECKPOINTS=str(folder), SYMDNN_FLAGS=f"device={device}")
    subprocess.run([*command, module], check=True, timeout=120, env=env, cwd=harness.ROOT)
    return json.loads((folder / "checks1.0").read_text())["values"]


QUICK = (
    "check_adam", "check_sync_batch_norm_is_that_of_the_whole_batch", "check_bare_updates",
    "check_sync_batch_norm_where_a_rank_has_no_sample", "check_means_of_statistics_count_samples",
    "check_sharded_parameters_are_trained_saved_and_resumed",
    "check_ranks_change_their_sizes_at_different_times", "check_embeddings_by_rows_and_as_a_whole",
    "check_ranks_with_different_numbers_of_rows_average_the_whole",
    "check_optimisers_that_are_joined_have_their_states",
    "check_integers_that_follow_from_updated_variables_need_no_average",
    "check_whole_matrices_are_gathered_for_a_step",
)  # fmt: skip


def test_trainings_are_equal_in_short(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_CHECKPOINTS", str(tmp_path))
    want = of_one(tmp_path, QUICK)
    for found in harness.checks(2, tmp_path, "train_checks", only=QUICK):
        for name in QUICK:
            same(name, found["values"][name], want[name])


@pytest.mark.slow
def test_trainings_are_equal_on_1_2_and_4_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_CHECKPOINTS", str(tmp_path))
    want = of_one(tmp_path)
    for count in (2, 4):
        for found in harness.checks(count, tmp_path, "train_checks"):
            assert set(found["values"]) == set(want)
            for name, values in found["values"].items():
                same(f"{name} on {count} ranks", values, want[name])


MIXED = (
    "check_a_tied_table_with_norms_clipped_and_rows",
    "check_norms_of_all_samples_with_accumulation_clipping_and_shards",
    "check_more_ranks_than_samples_and_elements",
    "check_losses_that_are_no_means_over_samples",
)


@pytest.mark.parametrize(("counts", "only"), [
    ((2,), MIXED), pytest.param((2, 3, 4), (), marks=pytest.mark.slow),
])  # fmt: skip
def test_several_ways_together_are_equal(counts, only, tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_CHECKPOINTS", str(tmp_path))
    want = of_one(tmp_path, only, module="mixed_checks")
    for count in counts:
        found = harness.checks(count, tmp_path, "mixed_checks", only=only, timeout=400)[0]
        assert set(found["values"]) == set(want)
        for name, values in found["values"].items():
            same(f"{name} on {count} ranks", values, want[name], rtol=1e-3, atol=1e-4)


def same(what, got, want, rtol=2e-4, atol=2e-5):
    if isinstance(want, dict):
        assert set(got) == set(want), what
        for name in want:
            same(f"{what}: {name}", got[name], want[name], rtol, atol)
    else:
        np.testing.assert_allclose(got, want, rtol, atol, err_msg=what)
