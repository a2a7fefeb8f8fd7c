"""The programs of ``benchmarks/gpu``: small sizes on the CPU, and tables of made-up results."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import profile_case, report, run, symdnn_cases, symdnn_nets
from benchmarks.gpu.device import Device
from benchmarks.gpu.symdnn_ops import Operation
from benchmarks.workloads import pspec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("net", "batch"), [(pspec.lenet5(), 64), (pspec.mlp(), 128)], ids=["lenet5", "mlp"]
)
def test_losses_are_the_reference_ones(net, batch):
    job = symdnn_cases.NetJob(net, Device(False), batch, "train", "tf32", "nchw", 4)
    losses = job.first()["losses"]
    wanted = symdnn_cases.REFERENCE[net.name, batch]
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    found = symdnn_cases.compare(losses, net.name, batch, "tf32", False, 4)
    assert found["loss_off"] < 2e-5
    assert "note" not in found
    off = [losses[0] * 1.02, *losses[1:]]
    assert "WRONG" in symdnn_cases.compare(off, net.name, batch, "tf32", False, 4)["note"]


def test_layouts_of_resnet_agree():
    net = pspec.resnet50(32)
    losses = {}
    for layout in ("nchw", "nhwc"):
        job = symdnn_cases.NetJob(net, Device(False), 2, "train", "tf32", layout, 2)
        losses[layout] = job.first()["losses"][:2]
    np.testing.assert_allclose(losses["nchw"], losses["nhwc"], rtol=1e-3)
    assert abs(losses["nchw"][0] - np.log(1000)) < 2


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_vgg_infers(precision):
    layout = "nhwc" if precision == "bf16" else "nchw"
    job = symdnn_cases.NetJob(pspec.vgg16(32), Device(False), 2, "infer", precision, layout, 2)
    record = job.first()
    assert 0 < record["loss0"] < 100
    assert job.memory()["mem_mb"] > 0


def test_mixed_precision_is_not_claimed_without_a_gpu():
    with pytest.raises(symdnn_cases.NotAvailable):
        symdnn_cases.NetJob(pspec.lenet5(), Device(False), 2, "train", "bf16", "nhwc", 2)


def lstm_layer(x, w_ih, w_hh, b_ih, b_hh):
    """pspec's definition, in float64: gates i, f, g, o."""
    h = c = np.zeros((x.shape[1], w_hh.shape[1]))
    out = []
    for row in x:
        i, f, g, o = np.split(row @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        out.append(h)
    return np.stack(out)


def test_the_vector_of_an_lstm_is_in_the_documented_layout():
    sizes = {"inp": 6, "hid": 5, "layers": 2, "T": 4, "B": 3}
    x, dy = pspec.rnn_data(sizes["T"], sizes["B"], sizes["inp"], sizes["hid"], 0)
    y = symdnn_nets.rnn_function("lstm", sizes, "float32", False)(x)
    parts = [a.astype(np.float64) for _, a in pspec.rnn_params("lstm", 6, 5, 2)]
    wanted = x.astype(np.float64)
    for layer in range(2):
        wanted = lstm_layer(wanted, *parts[4 * layer : 4 * layer + 4])
    np.testing.assert_allclose(y, wanted, atol=1e-6)
    again, dx, dw = symdnn_nets.rnn_function("lstm", sizes, "float32", True)(x, dy)
    np.testing.assert_allclose(again, wanted, atol=1e-6)
    assert dx.shape == x.shape
    assert dw.size == sum(a.size for a in parts)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", ["softmax", "batch_norm", "batch_norm_relu", "pooled"])
def test_operations_are_checked_against_float64(op, layout, shared):
    work = Operation(Device(False), op, (3, 4, 6, 5), "float32", layout, True, True)
    assert work.prepare(shared)["relerr"] < 1e-5
    assert len(work.calls) == 2
    y, dx, *_ = work.calls[1]()
    assert y.shape == work.y_shape
    assert dx.shape == work.shape


def test_the_chain_is_checked_against_float64():
    work = Operation(Device(False), "chain", (1000,), "float32", "", False, True)
    assert work.prepare(False)["relerr"] < 1e-5


def test_a_wrong_result_shows_in_the_error():
    work = Operation(Device(False), "softmax", (3, 4, 6, 5), "float32", "nchw", False, True)
    work.build = partial(lambda x: (x * 0.5, []))
    assert work.prepare(False)["relerr"] > 0.5


# -- the command that runs all of them ------------------------------------------------------------

LISTING = """\
prio 1 est   3s            calibrate                                torch
prio 1 est  40s net        lenet5/b64/train/tf32/nchw               eager,eager+graph
prio 1 est   4s dispatch   dispatch/ew1                             eager
"""


def test_finished_cases_are_left_out(tmp_path):
    cases = list(run.listed(LISTING))
    assert [c.seconds for c in cases] == [40, 4]
    out = tmp_path / "torch.jsonl"
    done = [{"case": "lenet5/b64/train/tf32/nchw", "peer": "eager", "ms": 1}]
    out.write_text("\n".join([*map(json.dumps, done), '{"case": "cut']))
    assert run.left_of(cases, run.finished(out)) == cases
    done.append({"case": "lenet5/b64/train/tf32/nchw", "peer": "eager+graph", "ms": 1})
    out.write_text("\n".join(map(json.dumps, done)))
    left = run.left_of(cases, run.finished(out))
    assert left == cases[1:]
    (_, pattern) = run.skipping(cases, left)
    assert pattern == r"^(?:lenet5/b64/train/tf32/nchw\ eager,eager\+graph)$"


def test_a_record_goes_on_where_it_stopped(tmp_path):
    words = ["--device", "cpu", "--tiny", "--who", "symdnn", "--families", "micro", "--prio", "1"]
    words += ["--only", "softmax_4096x1024/fwd/tf32", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.gpu.run", *words]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "2 cases" in first.stdout
    assert "nothing is left" in first.stdout
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout == "nothing is left\n"
    records = list(report.read(tmp_path.glob("*.jsonl")))
    (row,) = report.rows_of(records, {})
    assert row.symdnn is not None
    assert not row.wrong


# -- the table ------------------------------------------------------------------------------------


def result(case, peer, ms, **more):
    return {"case": case, "peer": peer, "ms": ms, **more}


def test_ratios_and_ceilings():
    records = [
        {"case": "info", "copy_gbs": 4000.0, "mm_tf32_tflops": 400.0},
        result("net/b1/train/tf32/nchw", "symdnn", 2.0, tflops=100.0, loss0=2.3),
        result("net/b1/train/tf32/nchw", "eager", 5.0, loss0=2.3),
        result("net/b1/train/tf32/nchw", "compile", 4.0, loss0=2.3),
        result("net/b1/train/tf32/nchw", "compile+graph", 1.0),
        result("op/fwd/fp32", "symdnn", 3.0, gbs=1000.0),
        result("op/fwd/fp32", "symdnn.shared", 1.0, gbs=3000.0),
        result("op/fwd/fp32", "compile", 1.3),
    ]
    net, op = report.rows_of(records, {"net/b1/train/tf32/nchw": "launches"})
    assert (net.user_peer, net.times_user) == ("compile", 2.0)
    assert (net.graph_peer, net.times_graph) == ("compile+graph", 0.5)
    assert net.ceiling == 0.25
    assert net.note == "launches"
    assert (op.symdnn, op.ceiling) == (1.0, 0.75)
    assert op.times_user == pytest.approx(1.3)
    text = report.text([net, op])
    assert "2 of 2 rows at 1.0 or more, 2 at 1.15" in text
    assert "1 of 2 rows at 1.0 or more, 1 at 1.15" in text
    assert report.markdown([net, op]).count("\n|") == 3


def test_wrong_results_are_marked_and_count_for_nothing():
    case = "net/b1/train/tf32/nchw"
    peers = [result(case, "eager", 5.0, loss0=2.3), result(case, "jax", 4.0, loss0=2.3)]
    for bad in ({"loss0": 2.5}, {"note": "WRONG LOSS"}, {"end": float("nan")}):
        (row,) = report.rows_of([result(case, "symdnn", 2.0, **bad), *peers], {})
        assert row.wrong
        assert "0 of 0 rows" in report.summary([row])
    (row,) = report.rows_of([result(case, "symdnn", 2.0, loss0=2.31), *peers], {})
    assert not row.wrong


def test_a_case_that_failed_shows_why():
    case = "net/b1/train/bf16/nhwc"
    records = [{"case": case, "peer": "symdnn", "err": "NotAvailable: amp"}, result(case, "jax", 4)]
    (row,) = report.rows_of(records, {})
    assert (row.symdnn, row.note, row.times_user) == (None, "NotAvailable: amp", None)


# -- profiles -------------------------------------------------------------------------------------


def kernel(name, start, duration, correlation=0):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration,
            "args": {"correlation": correlation}}  # fmt: skip


def test_kernels_are_summed_and_overlap_counts_once():
    events = [
        kernel("void ns::copy<float, ns::BigType>(float*)", 0, 10),
        kernel("void ns::copy<float, ns::BigType>(float*)", 5, 10),
        kernel("relu", 20, 4),
        {"ph": "X", "cat": "cpu_op", "name": "relu", "ts": 0, "dur": 100},
    ]
    assert profile_case.kernels_of(events, 2) == {
        "copy<float,BigType>": (1.0, 10.0),
        "relu": (0.5, 2),
    }
    assert profile_case.busy_us(profile_case.device_events(events)) == 19
    table = profile_case.show("a step", (1.0, 0.012, profile_case.kernels_of(events, 2)), 1)
    assert "83.3%" in table
    assert "others" in table


def test_kernels_belong_to_the_op_that_enqueued_them():
    launches = [(1, 5.0), (2, 25.0), (3, 50.0)]
    events = [
        {"cat": "user_annotation", "name": "op:Conv", "ts": 0.0, "dur": 10.0},
        {"cat": "user_annotation", "name": "op:Add", "ts": 20.0, "dur": 10.0},
        *({"cat": "cuda_driver", "ts": at, "args": {"correlation": n}} for n, at in launches),
        kernel("gemm", 100, 7, 1), kernel("add", 107, 2, 2), kernel("copy", 120, 3, 3),
    ]  # fmt: skip
    found = profile_case.attributed(events, 1)
    assert found == {"Conv": (1, 7), "Add": (1, 2), "(outside the plan) copy": (1, 3)}
