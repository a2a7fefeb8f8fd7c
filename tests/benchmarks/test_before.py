"""``benchmarks.before``: rows that two trees prepare, and processes that end."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import deque
from pathlib import Path

import pytest

from benchmarks import before

ROOT = Path(__file__).parents[2]
ROWS = "dispatch/ew1 symdnn", "dispatch/mm1 symdnn"


@pytest.fixture
def pair():
    found = before._Pair(argparse.Namespace(kind="gpu", device="cpu", tree=ROOT, longest=30))
    yield found
    found.end()


def test_a_process_that_ends_takes_only_its_rows_with_it(pair):
    assert pair.prepare(deque(ROWS[:1]), math.inf) == []
    pair._processes[0]._process.kill()
    (line,) = pair.measured(3)
    assert line == {"row": ROWS[0], "none": "the process ended"}
    assert pair.prepare(deque(["unknown", *ROWS]), math.inf) == [
        {"row": "unknown", "none": "KeyError: 'unknown'"}
    ]
    lines = list(pair.measured(3))
    assert [line["row"] for line in lines] == list(ROWS)
    assert all(line["ratio"] > 0 for line in lines)
    batch = deque(ROWS)
    assert pair.prepare(batch, time.monotonic()) == []
    assert len(batch) == 2


class _Given:
    """A pair whose times are given."""

    def __init__(self, args):
        self.ready = []

    def names(self):
        return ["slow", "same", "none"]

    def prepare(self, batch, until):
        self.ready = list(batch)
        batch.clear()
        return []

    def measured(self, rounds):
        for name in self.ready:
            ratio = {"slow": 0.9 if rounds == before._ROUNDS else 0.8, "same": 1.0}.get(name)
            found = {"ratio": ratio, "us": [ratio, 1.0]} if ratio else {"none": "why"}
            yield {"row": name, **found}

    def end(self):
        pass


def test_rows_that_lose_are_measured_again_and_none_a_third_time(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(before, "_Pair", _Given)
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr("sys.argv", ["before", "ops", "--tree", str(ROOT), "--out", str(out)])
    for _ in range(2):
        assert before.main() == 0
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert [line["row"] for line in lines] == ["slow", "same", "none", "slow"]
        assert "2 rows (1 not in both)" in (said := capsys.readouterr().out)
        assert "0.80  slow" in said
