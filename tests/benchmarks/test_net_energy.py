"""The benchmark of convolutions' energy: which algorithms are metered, its records and sums."""

import json

import pytest

from benchmarks.gpu import net_algorithms, net_energy
from symdnn.gpu.conv.candidate import Candidate
from symdnn.tuning.attempts import Attempt


def attempt(name, ms, problem=""):
    return Attempt(Candidate("legacy", name, 0, True), ms, 1e-7, problem=problem)


def test_the_fastest_of_each_engine_are_metered():
    found = [
        attempt("slow", 1.7), attempt("fft", 1.0), attempt("small", 1.2), attempt("small", 1.1),
        attempt("wrong", 0.5, "its result is off"), attempt("large", 1.5), attempt("gemm", 1.6),
        attempt("winograd", 1.55),
    ]  # fmt: skip
    metered = net_energy.fastest_of_engines(found)
    assert [(a.candidate.name, a.ms) for a in metered] == [
        ("fft", 1.0), ("small", 1.1), ("large", 1.5),
    ]  # fmt: skip


def row(name, ms, millijoules):
    return {
        "api": "legacy", "name": name, "number": 1, "supported": True, "workspace_bytes": 4,
        "deterministic": True, "ms": ms, "error": 1.23456e-7, "why": "", "millijoules": millijoules,
    }  # fmt: skip


def records(nets, batch):
    rows = [row("b", 3.0, 100.0), row("a", 2.0, 150.0), row("c", 4.0, None)]
    cases = net_algorithms.cases(nets, batch)
    return {name: net_energy.record(name, rows) for name, *_ in cases}


def test_a_record_has_the_fastest_and_the_most_frugal_algorithm():
    one = next(iter(records(["alexnet"], 2).values()))
    assert (one["fast_algorithm"], one["fast_ms"], one["fast_mj"]) == ("a", 2.0, 150.0)
    assert (one["frugal_algorithm"], one["frugal_ms"], one["frugal_mj"]) == ("b", 3.0, 100.0)
    assert [r["name"] for r in one["algorithms"]] == ["a", "b", "c"]
    assert one["algorithms"][0]["error"] == 1.235e-7
    with pytest.raises(RuntimeError, match="no algorithm"):
        net_energy.record("one", [])


def test_the_command_goes_on_and_draws(tmp_path, capsys):
    lines = [json.dumps(r) for r in records(["alexnet"], 64).values()]
    (tmp_path / "energy.jsonl").write_text("\n".join(lines))
    command = [str(tmp_path), "--report", "--nets", "alexnet", "--pictures", str(tmp_path)]
    assert net_energy.main(command) == 0
    said = capsys.readouterr().out
    assert "| alexnet | fwd | fp32 | 10.00 | 0.75 | 15.00 | 0.50 | 33.3% |" in said
    assert "all measured" in said
    assert len(list(tmp_path.glob("algorithms-alexnet-*.png"))) == 3
    with pytest.raises(SystemExit):
        net_energy.main([str(tmp_path), "--nets", "lenet"])
