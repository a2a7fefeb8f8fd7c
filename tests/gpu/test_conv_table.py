"""``symdnn algos`` and its table, the libraries and the bench replaced by fakes."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

from symdnn.cli import main
from symdnn.errors import ShapeMismatch
from symdnn.gpu import conv_table
from symdnn.gpu.conv_table import algorithms, conv
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.tuning.attempts import Attempt
from tests.gpu.conv.test_cudnn_algorithm import FORWARD_SIZE, refuse_algorithms
from tests.gpu.fake_cudnn import HANDLE

SHAPES = ["--input", "2,4,7,6", "--filter", "6,4,3,3"]


@pytest.fixture
def card(fake, monkeypatch):
    device = SimpleNamespace(cudnn=HANDLE, current=contextlib.nullcontext)
    monkeypatch.setattr(conv_table, "context", lambda index: device)
    refuse_algorithms(fake, FORWARD_SIZE, 3, 4, 5, 6, 7)
    for stem in ("Forward", "BackwardData", "BackwardFilter"):
        fake.answers[f"cudnnGetConvolution{stem}Algorithm_v7"] = []
    plan = GraphPlan(12, (), "eng12_k2=1", 64, False)
    fake.plans = lambda form: ([plan], "")
    return fake


@pytest.fixture
def clock(monkeypatch):
    times = {"none": 3.0, "small": 2.0, "eng12_k2=1": 1.0}

    def measure(context, signature, candidates, budget_ms):
        found = [Attempt(c, times.get(c.name), 1e-7) for c in candidates]
        return [
            m if m.ms else Attempt(m.candidate, problem="its result is off by inf") for m in found
        ], ""

    monkeypatch.setattr(conv_table, "measure", measure)


def test_what_is_supported_is_known_before_anything_runs(card):
    table = algorithms(conv((2, 4, 7, 6), (6, 4, 3, 3)), time=False)
    assert {r.name for r in table.supported()} == {"none", "small", "large", "eng12_k2=1"}
    refused = [r for r in table.rows if not r.supported]
    ours = {"bf16x6", "fft_f16x3", "folded"}
    assert {r.name for r in refused} == {"direct", "fft", "fft_tiling", "winograd",
                                         "winograd_non_fused", *ours}  # fmt: skip
    assert all("NOT_SUPPORTED" in r.why or r.name in ours for r in refused)
    assert not [name for name in card.ran() if name.startswith("cudnnConvolution")]


def test_rows_are_sorted_by_time(card, clock):
    table = algorithms(conv((2, 4, 7, 6), (6, 4, 3, 3)))
    assert [r.name for r in table.rows[:4]] == ["eng12_k2=1", "small", "none", "large"]
    assert table.rows[0].number == 12
    assert not table.rows[0].deterministic
    assert "its result is off" in str(table)


def test_the_command_prints_the_table(card, clock, capsys):
    assert main(["algos", *SHAPES, "--pad", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tensor float32(2, 4, 7, 6)" in lines[0]
    head = ["api", "number", "algorithm", "ms", "workspace", "mJ", "fixed", "error"]
    assert lines[1].split() == head
    assert lines[2].split()[:5] == ["graph", "12", "eng12_k2=1", "1.0000", "64"]


def test_the_command_as_json(card, capsys):
    assert main(["algos", *SHAPES, "--no-time", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["api"] for r in rows} == {"legacy", "graph", "cublaslt", "folded"}


@pytest.mark.parametrize("direction", ["bwd_data", "bwd_filter"])
def test_the_gradients_have_tables_of_their_own(card, capsys, direction):
    assert main(["algos", *SHAPES, "--no-time", "--direction", direction]) == 0
    assert "deterministic" in capsys.readouterr().out


def test_shapes_that_do_not_fit_are_said(card, capsys):
    with pytest.raises(ShapeMismatch, match="filter's second size"):
        conv((2, 4, 7, 6), (6, 3, 3, 3))
    assert main(["algos", "--input", "2,4,7,6", "--filter", "6,4,9,9"]) == 2
    assert "a larger pad" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--filter 6,4,3", "(K, C / groups, h, w)"),
        ("--filter 6,0,3,3", "at least 1"),
        ("--filter 5,2,3,3 --groups 2", "a multiple of groups"),
        ("--filter 6,4,3,3 --pad 1,2,3", "pad as one size or 2"),
        ("--filter 6,4,3,3 --pad=-1", "at least 0"),
        ("--filter 6,4,3,3 --stride 0", "stride as one size or 2, each at least 1"),
    ],
)
def test_each_wrong_size_is_named(more, said, capsys):
    assert main(["algos", "--input", "2,4,7,6", *more.split()]) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_size_is_shown(capsys):
    with pytest.raises(SystemExit):
        main(["algos", "--input", "2,4,x", "--filter", "6,4,3,3"])
    assert "wanted integers with commas between them" in capsys.readouterr().err


@pytest.mark.parametrize("word", [{"direction": "bwd"}, {"dtype": "int8"}, {"layout": "nhwc"}])
def test_each_wrong_word_is_named(word):
    ((name, value),) = word.items()
    with pytest.raises(ValueError, match=f"{name}='{value}'; wanted one of"):
        conv((2, 4, 7, 6), (6, 4, 3, 3), **word)


def test_sizes_may_differ_by_dimension():
    s = conv((2, 4, 9, 8, 7), (6, 2, 3, 3, 1), pad=(1, 0, 2), stride=(2, 1, 1), groups=2)
    assert s.y == (2, 6, 5, 6, 11)


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    from symdnn.gpu.device.context import CudaUnavailable

    def none(index):
        raise CudaUnavailable("the CUDA driver does not start: no device")

    monkeypatch.setattr(conv_table, "context", none)
    assert main(["algos", *SHAPES]) == 2
    assert capsys.readouterr().err == "symdnn: the CUDA driver does not start: no device\n"
