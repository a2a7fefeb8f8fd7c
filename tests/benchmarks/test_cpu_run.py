"""The programs of ``benchmarks/cpu``: tiny sizes, and tables of made-up results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cpu import fresh, jobs, report, run, side_symdnn, sides, spec

ROOT = Path(__file__).parents[2]
NAMES = [c.name for c in spec.CASES]


def results(name: str) -> dict[str, np.ndarray]:
    job = side_symdnn.prepare(spec.find(name, tiny=True), "symdnn")
    found = job.results(job.step())
    return {k: np.array(v, dtype=np.float64) for k, v in found.items()}


def test_every_case_is_named_once_and_all_wanted_families_are_there():
    assert len(set(NAMES)) == len(NAMES)
    convolutions = {tuple(n.split("/")[1:3]) for n in NAMES if n.startswith("conv/")}
    assert len(convolutions) == 7 * 3
    assert {c.family for c in spec.CASES} >= {"net", "rnn", "call", "pool", "bn", "softmax"}
    assert all(row[0] in NAMES for row in (*fresh.FIRST.values(), *fresh.MEMORY.values()))


@pytest.mark.parametrize("direction", ["fwd", "bwd_d", "bwd_w"])
@pytest.mark.parametrize("name", ["c2", "c6", "c7"])
def test_convolutions_by_loops_agree_in_both_orders(name, direction):
    case = spec.find(f"conv/{name}/{direction}/nchw", tiny=True)
    given = {k: v.astype(np.float64) for k, v in spec.inputs(case).items()}
    key, wanted = by_loops(case.sizes, given)
    for layout in ("nchw", "nhwc"):
        found = results(f"conv/{name}/{direction}/{layout}")
        np.testing.assert_allclose(found[key], wanted, rtol=1e-4, atol=1e-5)


def by_loops(s, given):
    """(the result's name, its values in float64): tap by tap."""
    x = np.pad(given["x"], [(0, 0), (0, 0), *[(s["pad"],) * 2] * 2])
    w, dy, out = given["w"], given["dy"], spec.conv_out(s)
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    per_in, per_out = s["c"] // s["groups"], s["k"] // s["groups"]
    for g in range(s["groups"]):
        ins, outs = np.s_[g * per_in : (g + 1) * per_in], np.s_[g * per_out : (g + 1) * per_out]
        for i in range(s["r"]):
            for j in range(s["r"]):
                last = s["stride"] * (out - 1) + 1
                at = (slice(None), ins, np.s_[i : i + last : s["stride"]],
                      np.s_[j : j + last : s["stride"]])  # fmt: skip
                tap = w[outs, :, i, j]
                y[:, outs] += np.einsum("kc,nchw->nkhw", tap, x[at])
                dx[at] += np.einsum("kc,nkhw->nchw", tap, dy[:, outs])
                dw[outs, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, outs], x[at])
    inner = np.s_[:, :, s["pad"] : x.shape[2] - s["pad"], s["pad"] : x.shape[3] - s["pad"]]
    return {"fwd": ("y", y), "bwd_d": ("dx", dx[inner]), "bwd_w": ("dw", dw)}[s["pass"]]


@pytest.mark.parametrize("name", ["pool/max2x2_16x64x56x56/fwdbwd", "bn/train_16x64x56x56/fwdbwd"])
def test_orders_of_images_agree(name):
    one, other = results(f"{name}/nchw"), results(f"{name}/nhwc")
    assert one.keys() == other.keys() >= {"y", "dx"}
    for key, value in one.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-4, atol=1e-5)


def test_a_network_learns_and_its_scores_are_finite():
    losses = results("net/resnet20_b64/train")["losses"]
    assert losses.shape == (4,)
    assert np.isfinite(losses).all()
    assert len(set(losses.tolist())) == 4
    assert np.isfinite(results("net/resnet20_b64/infer")["scores"]).all()


def test_a_model_gives_scores_and_its_parameters_have_values_of_their_names():
    scores = results("model/mobilenet_v3_small_b8/infer")["scores"]
    assert scores.shape == (4, 1000)
    assert np.isfinite(scores).all()
    value = spec.model_value("features.0.0.weight", (16, 3, 3, 3))
    assert abs(value.std() - (2 / 27) ** 0.5) < 0.05
    assert spec.model_value("features.0.1.running_var", (16,)).tolist() == [1.0] * 16


def test_adam_is_adam():
    given = spec.inputs(spec.find("fused/adam1M", tiny=True))
    g = given["g"].astype(np.float64)
    m, v = 0.9 * given["m"] + 0.1 * g, 0.999 * given["v"] + 0.001 * g * g
    found = results("fused/adam1M")
    np.testing.assert_allclose(found["m"], m, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["p"], given["p"] - 1e-3 * m / (np.sqrt(v) + 1e-8), rtol=1e-5)


def test_a_worker_answers_and_outlives_an_error():
    process = sides.Process(sys.executable, "symdnn", sides.environment(1), tiny=True)
    try:
        first = process.ask("prepare", case="fused/chain64k", variant="symdnn")
        assert first["ms"] > 0
        assert first["checks"]["y"]
        assert "StopIteration" in process.ask("prepare", case="no such", variant="symdnn")["error"]
        window = process.window("symdnn", 3)
        assert 0 < window.least <= window.ms
        assert process.ask("facts")["symdnn_threads"] == 1
        assert process.ask("drop") == {}
    finally:
        process.end()
    assert process.ask("facts")["ended"]


def test_the_command_goes_on_where_it_stopped_and_names_what_cannot_run(tmp_path):
    command = [
        sys.executable, "-m", "benchmarks.cpu.run", "--tiny", "--out", str(tmp_path), "--only",
        "fused/sumsq4M", "--peers-python", sys.executable, "--calm", "0", "--part", "times",
        "--sides", "symdnn,jax",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = run.Record(tmp_path / "cpu.jsonl").lines()
    by = {r["side"]: r for r in lines if "side" in r}
    assert by["symdnn"]["ms_min"] <= by["symdnn"]["ms"]
    assert len(by["symdnn"]["windows"]) == run.QUICK.rounds
    assert "jax" in by
    assert list(tmp_path.glob("cpu-*.txt"))
    assert list(tmp_path.glob("cpu-*.png"))
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "fused/sumsq4M: symdnn" not in again.stdout


def record(case: str, side: str, ms: float, checks=None, windows=None) -> dict:
    times = windows or [ms] * 5
    return {
        "case": case, "side": side, "ms": ms, "ms_min": min(times), "ms_quiet": ms,
        "windows": [(t, 0.0) for t in times], "checks": checks or {"losses": [2.3, 2.2]},
    }  # fmt: skip


LENET = "net/lenet5_b64/train"


def test_the_best_peer_and_the_goal():
    records = [record(LENET, "symdnn", 4), record(LENET, "torch", 10), record(LENET, "jax", 7.6)]
    (row,) = report.rows_of(records, {LENET: "the updates are not fused"})
    assert (row.best, row.ratio, row.goal, row.met) == ("jax", 1.9, 2.0, False)
    shown = report.text(records, [row])
    assert "MISS" in shown
    assert f"missed: {LENET}: 1.90 of 2.00 (jax) the updates are not fused" in shown


def test_a_wrong_result_counts_for_nothing():
    wrong = {"losses": [2.3, 2.4]}
    records = [
        record(LENET, "symdnn", 1, wrong),
        record(LENET, "torch", 9),
        record(LENET, "jax", 8),
    ]
    (row,) = report.rows_of(records, {})
    assert row.wrong == ("symdnn",)
    assert row.ratio is None
    assert f"wrong: {LENET}: symdnn" in report.text(records, [row])
    two = report.disagreeing({"symdnn": records[0], "torch": records[1]})
    assert two == {"symdnn", "torch"}  # nobody knows who is right
    nan = {"losses": [float("nan")]}
    assert report.disagreeing({"symdnn": record(LENET, "symdnn", 1, nan)}) == {"symdnn"}


def test_two_modes_are_seen_and_compared_apart():
    assert report.modes([1, 1.01, 1.02, 1.8, 1.81]) == pytest.approx((1.01, 1.805))
    assert report.modes([1, 1.1, 1.2, 1.3, 1.4]) is None
    ours = record(LENET, "symdnn", 1, windows=[1, 1, 1, 2, 2])
    theirs = record(LENET, "torch", 3, windows=[3, 3, 3, 5, 5])
    (row,) = report.rows_of([ours, theirs], {})
    assert (row.least, row.loaded) == (3, 2.5)


def test_a_loaded_machine_is_said_and_one_thread_is_compared_by_its_processor():
    ours, theirs = record(LENET, "symdnn", 1), record(LENET, "torch", 2)
    (row,) = report.rows_of([{**ours, "ms_quiet": None}, theirs], {})
    assert row.note == "loaded"
    alone = {"threads": 1}
    (row,) = report.rows_of(
        [{**ours, **alone, "cpu_ms": 2.0}, {**theirs, **alone, "cpu_ms": 5.0}], {}
    )
    assert row.ratio == 2.5


def test_the_first_step_warm_is_compared_with_jax_cold():
    records = [
        {"case": f"compile/lenet5/{when}", "side": side, "s": s, "checks": {"losses": [1.0]}}
        for when, side, s in (
            ("cold", "symdnn", 1.0),
            ("cold", "jax", 2.0),
            ("warm", "symdnn", 0.3),
        )
    ]
    assert "warm: 0.15 of JAX's cold one" in report.text(records, report.rows_of(records, {}))


def test_checksums_see_a_sign_a_shift_and_an_order():
    x = np.random.default_rng(1).standard_normal(1000)
    base = jobs.checksums({"y": x})
    for other in (-x, x + 0.1, x[::-1]):
        assert not report.close(jobs.checksums({"y": other}), base)
    assert report.close(jobs.checksums({"y": x.astype(np.float32)}), base)


def test_enough_windows():
    pace = run.Pace(rounds=3, quiet=2)
    quiet, loud = sides.Window(1, 1, 0.0), sides.Window(1, 1, 1.5)
    assert run.enough({"a": [quiet] * 3}, 3, pace)
    assert not run.enough({"a": [quiet] * 3, "b": [quiet, loud, loud]}, 3, pace)
    found = run.summary([quiet, loud, sides.Window(3, 2, 1.0)])
    assert (found["ms"], found["ms_min"], found["ms_quiet"]) == (1, 1, None)


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "cpu.jsonl"
    path.write_text(json.dumps({"case": "a", "side": "symdnn"}) + '\n{"case": "b", "si')
    assert run.Record(path).done() == {("a", "symdnn")}
