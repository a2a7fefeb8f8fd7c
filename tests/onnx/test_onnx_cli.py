"""The command ``symdnn onnx``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cli import main
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
