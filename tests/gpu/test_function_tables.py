"""``symdnn algos --function``: tables of all convolutions of a function, on fakes."""

from __future__ import annotations

import csv
import io
import json

import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.cli import main
from symdnn.config import config
from symdnn.errors import InputError
from symdnn.gpu.conv_table import TableRow
from symdnn.gpu.function_tables import pareto, tables
from tests.gpu.test_conv_table import card, clock  # noqa: F401

pytestmark = pytest.mark.usefixtures("card", "clock")
SHAPES = {"x": (2, 3, 9, 9)}


def step(target="cuda:sm_90"):
    """Training of two convolutions, the second of which has a bias and a relu behind it."""
    net = nn.Sequential(
        nn.SpatialConvolution(3, 4, 3, 3), nn.ReLU(), nn.SpatialConvolution(4, 4, 3, 3), nn.ReLU()
    )
    x = T.tensor4("x")
    loss = net(x).sum()
    mode = symdnn.Mode(target=target)
    return symdnn.function([x], loss, updates=nn.optim.sgd(loss, net, 0.1), mode=mode)


def on_cpu():
    return step("cpu")


@pytest.fixture(scope="module")
def function():
    return step()


def test_a_table_for_each_convolution_by_name(function):
    found = tables(function, SHAPES)
    named = [(one.layer, one.direction) for one in found.layers]
    assert sorted(named) == [
        ("0", "bwd_filter"), ("0", "fwd"), ("2", "bwd_data"), ("2", "bwd_filter"), ("2", "fwd")
    ]  # fmt: skip
    assert __file__ in found.layers[0].line or "test_function_tables" in found.layers[0].line
    text = str(found)
    assert text.count("eng12_k2=1") >= 5
    assert "0 fwd" in text


def test_the_rows_as_csv_and_json_are_the_same(function):
    found = tables(function, SHAPES)
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert len(rows) == len(json.loads(found.json())) > 10
    first, same = rows[0], json.loads(found.json())[0]
    assert set(first) == set(same) >= {
        "layer", "ms", "workspace_bytes", "millijoules", "error", "deterministic", "on_front"
    }  # fmt: skip
    assert first["layer"] == same["layer"]
    assert float(first["ms"]) == same["ms"]


def test_a_picture_has_a_panel_for_each(function, tmp_path):
    path = tmp_path / "algos.png"
    tables(function, SHAPES).save_picture(str(path))
    assert path.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InputError, match="wanted measured times"):
        tables(function, SHAPES, time=False).save_picture(str(path))


def test_a_function_without_plans_says_what_to_do(function):
    with pytest.raises(InputError, match="--shape"):
        tables(function)


def test_the_front_of_time_workspace_and_energy():
    def row(name, ms, nbytes, energy=None):
        return TableRow("legacy", name, 0, True, nbytes, ms=ms, millijoules=energy)

    rows = [row("a", 1.0, 90), row("b", 2.0, 10), row("c", 2.0, 20), row("d", None, 0)]
    assert [r.name for r in pareto(rows)] == ["a", "b"]
    rows = [row("a", 1.0, 90, 5.0), row("b", 2.0, 10, 5.0), row("c", 2.0, 20, 1.0)]
    assert [r.name for r in pareto(rows)] == ["a", "b", "c"]
    assert [r.name for r in pareto(rows, energy=False)] == ["a", "b"]


def test_the_command(capsys, tmp_path):
    command = ["algos", "--function", f"{__name__}:step", "--shape", "x=2,3,9,9"]
    files = ["--csv", str(tmp_path / "a.csv"), "--picture", str(tmp_path / "a.png")]
    assert main([*command, *files, "--json"]) == 0
    assert {r["layer"] for r in json.loads(capsys.readouterr().out)} == {"0", "2"}
    assert (tmp_path / "a.csv").read_text().startswith("layer,direction,api,")
    assert (tmp_path / "a.png").exists()
    assert main(["algos"]) == 2
    assert "wanted --input and --filter, --function" in capsys.readouterr().err
    assert main(["algos", "--function", "json:decoder"]) == 2


def test_the_command_without_a_convolution_of_cudnn_says_so(capsys, tmp_path):
    """Also where a picture or JSON was asked for; a function for the CPU is the usual case."""
    command = ["algos", "--function", f"{__name__}:on_cpu", "--shape", "x=2,3,9,9"]
    path = tmp_path / "a.png"
    assert main([*command, "--json", "--picture", str(path)]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == []
    assert "there is no convolution of cuDNN's in this function" in err
    assert not path.exists()
    assert main([*command[:-1], "x=2,3"]) == 2
    assert "the input x: wanted shape" in capsys.readouterr().err


def test_tune_runs_a_script_with_measured_choices(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from symdnn.config import config\n"
        "from symdnn.tuning import store\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--steps', '3']\n"
        "assert config.dnn.conv.algo_fwd == 'time_once'\n"
        "store.remember({'family': 'letters', 'n': 1}, {'name': 'b', 'ms': 2.0})\n"
    )
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "kept")}):
        assert main(["tune", str(script), "--steps", "3"]) == 0
        text = capsys.readouterr().out
        assert "letters: b, 2 ms" in text
        assert "measured 1 new choices; 0 were known" in text
        assert main(["tune", str(script), "--steps", "3"]) == 0
        assert "measured 0 new choices; 1 were known" in capsys.readouterr().out
    assert config.dnn.conv.algo_fwd != "time_once"
