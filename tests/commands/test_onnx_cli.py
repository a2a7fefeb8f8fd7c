"""The command ``symdnn onnx``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cli import main
from symdnn.onnx import load
from tests.onnx.models import model

TEXT = "g (float[batch, 3] x) => (y) { h = MatMul(x, w) y = Relu(h) }"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "net.onnx"
    onnx.save(model(TEXT, w=np.eye(3, dtype="float32")), found)
    return str(found)


def test_info(path, capsys):
    assert main(["onnx", "info", path, "--kernels"]) == 0
    text = capsys.readouterr().out
    assert "input   x: float32(batch, 3)" in text
    assert "1 parameters with 9 elements" in text
    assert "2 nodes: 1 MatMul, 1 Relu" in text
    assert "gemm" in text.lower()


def test_kernels_have_the_names_of_nodes(tmp_path, capsys):
    """No line of a program made them: neither this one's nor Python's that runs a module."""
    made = model(TEXT, w=np.eye(3, dtype="float32"))
    made.graph.node[0].name, made.graph.node[1].name = "/layer1/fc/MatMul", "/layer1/act"
    onnx.save(made, tmp_path / "net.onnx")
    command = ["onnx", "info", str(tmp_path / "net.onnx"), "--kernels"]
    assert main(command) == 0
    inside = capsys.readouterr().out
    done = subprocess.run([sys.executable, "-m", "symdnn", *command], capture_output=True,
                          text=True, check=True)  # fmt: skip
    for text in (inside, done.stdout):
        assert "layer1.act" in text
        assert "runpy" not in text
        assert ".py:" not in text


def test_run(path, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.float32([[1, -2, 3]]))
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out")]
    assert main(["onnx", "run", path, *given]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), [[1, 0, 3]])
    assert "y: float32(1, 3)" in capsys.readouterr().out


def test_bench(path, capsys):
    assert main(["onnx", "bench", path, "--size", "batch=4", "--calls", "3"]) == 0
    text = capsys.readouterr().out
    assert "symdnn" in text
    assert "onnxruntime" in text


def test_times_of_layers(path, tmp_path, capsys):
    """A layer is a node of the file, by its name or that of its result."""
    out = str(tmp_path / "times.json")
    assert main(["onnx", "run", path, "--layers", "--profile", out]) == 0
    text = capsys.readouterr().out
    assert "net: 1 calls" in text
    assert re.search(r"[\d.]+ +[\d.]+ +[\d.]+  (h|y) \(\w+, [\w.]+", text)
    rows = json.loads(Path(out).read_text())["nodes"]
    assert {r["module"] for r in rows} <= {"h", "y"}
    assert all(r["calls"] == 1 for r in rows)


def test_names_of_layers_are_those_of_the_file_in_functions_too():
    """The path of a node has the call around it; a name's slashes are dots."""
    text = "g (float[4] x) => (float[4] y) { h = local.twice (x) y = Tanh (h) }"
    body = ('<domain: "local", opset_import: ["": 21]> twice (a) => (b) '
            "{ two = Constant <value_float: float = 2.0> () b = Mul (a, two) }")  # fmt: skip
    made = model(text, functions=body)
    made.graph.node[0].name, made.graph.node[1].name = "/layer1/double", "/layer1/act/Tanh"
    (y,) = load(made).expressions.values()
    assert y.owner.origin.module == "layer1.act.Tanh"
    assert y.owner.inputs[0].owner.origin.module == "layer1.double.b"


def test_tune(tmp_path, capsys):
    w = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype("float32")
    found = str(tmp_path / "conv.onnx")
    onnx.save(model("g (float[batch, 3, 9, 9] x) => (y) { y = Conv(x, w) }", w=w), found)
    folder = str(tmp_path / "cache")
    with symdnn.config.change_flags({"dnn.conv.tuning_cache": folder}):
        assert main(["onnx", "tune", found, "--size", "batch=2", "--calls", "3"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"measured \d+ new choices", text)
    assert re.search(r"by guesses +[\d.]+ ms\nby measuring +[\d.]+ ms", text)
    assert "SYMDNN_FLAGS=" in text


def test_export(tmp_path, capsys):
    x = T.matrix("x", dtype="float32")
    symdnn.save(symdnn.function([x], {"y": x * 2}), tmp_path / "f.symdnn")
    assert main(["onnx", "export", str(tmp_path / "f.symdnn"), str(tmp_path / "f.onnx")]) == 0
    found = symdnn_of(tmp_path / "f.onnx")(np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(found["y"], 2 * np.ones((2, 2)))
    assert "opset 21" in capsys.readouterr().out


def symdnn_of(path):
    from symdnn.onnx import compile

    return compile(path)


@pytest.mark.parametrize(
    "args", [["--size", "depth=3"], ["--size", "batch"], ["--input", "z=a.npy"]]
)
def test_wrong_arguments(path, args, capsys):
    assert main(["onnx", "run", path, *args]) == 2
    assert "symdnn: " in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_to_do(path, capsys):
    """Both the command and the import, in a process that finds no package onnx."""
    code = "import sys; sys.modules['onnx'] = None\n"
    for end in (
        "import symdnn.onnx",
        f"from symdnn.cli import main; sys.exit(main(['onnx', 'info', {path!r}]))",
    ):
        done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True)
        assert done.returncode != 0
        assert "needs the package onnx: pip install 'symdnn[onnx]'" in done.stderr.splitlines()[-1]
