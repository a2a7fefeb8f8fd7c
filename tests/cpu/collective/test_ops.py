"""Collectives on 2 and 4 ranks by MPI: one launch for each number."""

import pytest

from tests.distributed import harness


def test_collectives_on_4_ranks_in_short(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_QUICK", "1")
    quick = ("every_op_on_every_dtype_and_size", "strided_operands", "groups_and_a_mesh")
    harness.checks(4, tmp_path, "ops_checks", only=[f"check_{n}" for n in quick])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_collectives_agree_with_their_references(count, tmp_path):
    harness.checks(count, tmp_path, "ops_checks")
