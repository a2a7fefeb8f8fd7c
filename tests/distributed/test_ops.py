"""Collectives on 2 and 4 ranks by MPI: one launch for each number."""

import pytest

from tests.distributed import harness


@pytest.mark.parametrize("count", [2, 4])
def test_collectives_agree_with_their_references(count, tmp_path):
    harness.checks(count, tmp_path, "ops_checks")
