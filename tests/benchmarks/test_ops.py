"""The rows of ``benchmarks.ops``: selected the same way everywhere, right, timed."""

from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
from benchmarks.ops import peers, report
from benchmarks.ops.program import NotThere, build
from benchmarks.ops.rows import FIXED_COUNT, all_rows, fixed_rows, rotated_rows, row_named
from benchmarks.ops.timing import Timer


def test_the_fixed_selection_has_every_op_and_rotations_have_other_rows():
    rows, fixed = all_rows(), fixed_rows()
    assert len({r.id for r in rows}) == len(rows)
    assert len(fixed) == FIXED_COUNT
    assert {r.op for r in fixed} == {r.op for r in rows}
    assert [r.id for r in fixed] == [r.id for r in fixed_rows()]
    first, second = ({r.id for r in rotated_rows(seed, 50)} for seed in (1, 2))
    assert not first & {r.id for r in fixed}
    assert first != second


@pytest.mark.parametrize("direction", ["forward", "gradient"])
@pytest.mark.parametrize("order", ["contiguous", "transposed"])
@pytest.mark.parametrize("case", ["sum_0", "softmax_2d_axis1", "add"])
def test_a_row_grows_and_is_right(case, order, direction):
    row = row_named(f"{case}/float32/{order}/middle/{direction}")
    program = build(row)
    assert 30_000 < max(a.size for a in program.arrays) < 300_000
    assert program.error(list(program.function(*program.arrays))) < 1e-5


def test_what_cannot_grow_is_said():
    with pytest.raises(NotThere, match="scalars|grow"):
        build(row_named("arange/as drawn/contiguous/large/forward"))


def test_a_wrong_result_is_listed_and_not_timed(monkeypatch):
    timer, row = Timer(False, seconds=1e-4), row_named("add/float32/contiguous/small/forward")
    right = timer.record(row)
    assert right["ms"] > 0
    assert not right.get("wrong")
    monkeypatch.setattr("benchmarks.ops.program._difference", lambda a, b: 1.0)
    monkeypatch.setattr("benchmarks.ops.program.Program.noise", lambda self: 0.0)
    wrong = timer.record(row)
    assert wrong["wrong"]
    lines = "\n".join(report.table([right, wrong]))
    assert "1 timed, 1 wrong" in lines
    assert "WRONG add/float32" in lines


def test_a_formula_is_told_in_another_library():
    other = SimpleNamespace(sum=lambda x, axis=None: ("sum", x), exp=lambda x: ("exp", x))

    def helper(x):
        return np.exp(x)

    told = peers.retold(lambda x: np.sum(helper(x), axis=0), {"numpy": other})
    assert told(1.0) == ("sum", ("exp", 1.0))
    assert peers.retold(np.exp, {"numpy": other}) is other.exp
    np.testing.assert_equal(helper(0.0), 1.0)  # the function itself is as it was


def test_rows_beside_peers_have_the_programs_of_their_records():
    rows = {r.direction: r for r in all_rows() if r.id.startswith("exp/float32/transposed/small")}
    assert len(rows) == 2
    for direction, row in rows.items():
        made = peers.nest_row(row)
        arrays = [make() for make in made.arrays]
        xs = [symdnn.tensor.TensorType("float32", a.shape)() for a in arrays]
        found = symdnn.function(xs, made.symdnn(*xs))(*arrays)
        wanted = np.exp(arrays[0].T) * (arrays[1] if direction == "gradient" else 1)
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
