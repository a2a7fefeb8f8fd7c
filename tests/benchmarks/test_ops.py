"""The rows of ``benchmarks.ops``: selected the same way everywhere, right, timed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
from benchmarks.ops import in_turn, peers, report
from benchmarks.ops.program import NotThere, build
from benchmarks.ops.retold import retold
from benchmarks.ops.rows import FIXED_COUNT, all_rows, fixed_rows, rotated_rows, row_named
from benchmarks.ops.sides import nest_row
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

    told = retold(lambda x: np.sum(helper(x), axis=0), {"numpy": other})
    assert told(1.0) == ("sum", ("exp", 1.0))
    assert retold(np.exp, {"numpy": other}) is other.exp
    np.testing.assert_equal(helper(0.0), 1.0)  # the function itself is as it was


def test_rows_beside_peers_have_the_programs_of_their_records():
    rows = {r.direction: r for r in all_rows() if r.id.startswith("exp/float32/transposed/small")}
    assert len(rows) == 2
    for direction, row in rows.items():
        made = nest_row(row)
        arrays = [make() for make in made.arrays]
        xs = [symdnn.tensor.TensorType("float32", a.shape)() for a in arrays]
        found = symdnn.function(xs, made.symdnn(*xs))(*arrays)
        wanted = np.exp(arrays[0].T) * (arrays[1] if direction == "gradient" else 1)
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5)


def test_processes_measure_one_after_the_other(tmp_path):
    """Nobody measures while another one prepares or measures; who is late is ended."""
    log, text = (
        tmp_path / "log",
        """
import sys, time
from benchmarks.ops import in_turn
k, log = int(sys.argv[1]), sys.argv[2]
def say(what):
    with open(log, "a") as file:
        file.write(f"{what} {k}\\n")
def prepare(row, left):
    time.sleep(100 if k == 3 else 0.02 * (k + 1))
    say("prepared")
    return row
def measure(row):
    say("begins")
    time.sleep(0.02)
    say("ends")
    return [k, row]
if k == 2:
    sys.exit("a failure")
in_turn.work(range(3), prepare, measure, 60)
""",
    )
    commands = [[sys.executable, "-c", text, str(k), str(log)] for k in range(4)]
    found, notes = in_turn.children(commands, 1.5 - in_turn.LATE_S, 60)
    assert sorted(found) == [[k, row] for k in (0, 1) for row in range(3)]
    assert sorted(notes) == ["process 2 failed", "process 3 was late, and its rows are left out"]
    lines = log.read_text().splitlines()
    assert all(line.startswith("prepared") for line in lines[:6])
    for a, b in zip(lines[6::2], lines[7::2], strict=True):
        assert (a[:6], b[:4], a[-1]) == ("begins", "ends", b[-1])


def test_the_report_has_the_slowest_rows_first():
    rows = [
        {"row": "a/huge/b", "symdnn": 2.0, "copy": 1.0, "torch": 1.0, "jax": 3.0, "notes": []},
        {"row": "c", "symdnn": 1.0, "copy": 0.5, "jax": 0.2, "notes": []},
        {"row": "d", "symdnn": 1.0, "copy": 0.9, "torch": 2.0, "notes": []},
        {"row": "e", "notes": ["no numbers"]},
    ]
    first, second, _, *body = peers.report(rows, 2)
    assert first == "3 beside a peer: 1 at 1.0 or more, 0 at 0.9 to 1, 2 below"
    assert second == "1 rows of 256 MB, 1 of them slower than 0.85 of a copy's rate"
    assert [line.split()[-1] for line in body[:3]] == ["c", "a/huge/b", "a/huge/b"]
    assert body[3:] == ["FAILED e: no numbers"]
