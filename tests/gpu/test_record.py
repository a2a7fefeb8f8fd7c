"""The record that a run of the GPU tests prints."""

import re
from types import SimpleNamespace

from tests.gpu import record as r


def report(nodeid):
    return SimpleNamespace(nodeid=nodeid)


STATS = {
    "passed": [report("a.py::x"), report("a.py::y"), report("b.py::x")],
    "failed": [report("b.py::y")],
    "skipped": [report("b.py::z")],
    "": [report("a.py::x")],
    "warnings": [report("a.py::x"), SimpleNamespace()],
}
MARKED = {"a.py::x", "a.py::y", "b.py::y", "b.py::z"}


def test_it_counts_tests_on_a_gpu_by_file():
    text = "\n".join(r.record(STATS, MARKED, 12.3))
    assert re.search(r"^a\.py +2 passed$", text, re.MULTILINE)
    assert re.search(r"^b\.py +1 failed, 1 skipped$", text, re.MULTILINE)
    assert re.search(r"^all +2 passed, 1 failed, 1 skipped$", text, re.MULTILINE)


def test_it_says_what_the_numbers_belong_to(monkeypatch):
    monkeypatch.setenv("SYMDNN_COMMIT", "abc123")
    lines = r.record(STATS, MARKED, 12.3)
    names = [line.split()[0] for line in lines[: lines.index("")]]
    wanted = [
        "date",
        "commit",
        "GPU",
        "driver",
        "CUDA",
        "cuDNN",
        "runtime",
        "Python",
        "machine",
        "seconds",
    ]
    assert names == wanted
    assert "commit      abc123" in lines


def test_nothing_is_recorded_where_no_test_ran_on_a_gpu():
    assert r.record({"passed": STATS["passed"][2:], "skipped": STATS["skipped"]}, MARKED, 1) == []
