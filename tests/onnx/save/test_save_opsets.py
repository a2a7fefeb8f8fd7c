"""The opset that ``save`` writes by default, and what is asked to find it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx.shape_inference import infer_shapes

import symdnn.tensor as T
from symdnn.onnx import compile, save
from symdnn.onnx.save import newest

X = T.tensor("float32", (2, 3), name="x")
NEWEST = onnx.defs.onnx_opset_version()


@pytest.fixture(autouse=True)
def _asked_anew():
    newest.default_opset.cache_clear()
    yield
    newest.default_opset.cache_clear()


def runtime(takes):
    """ONNX Runtime that takes the models of some opsets; the opsets that it was asked for."""
    asked = []

    def session(text, options, providers):
        (opset,) = onnx.load_from_string(text).opset_import
        asked.append(opset.version)
        if not takes(opset.version):
            raise RuntimeError("under development")

    room = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=session)
    return room, asked


@pytest.mark.parametrize("most", [18, 20, 21, 23, NEWEST])
def test_the_newest_that_the_runtime_takes_is_written(most, monkeypatch, tmp_path):
    room, asked = runtime(lambda opset: opset <= most)
    monkeypatch.setitem(sys.modules, "onnxruntime", room)
    for _ in range(2):
        assert save(T.exp(X), tmp_path / "m.onnx").opset_import[0].version == most
    assert asked == [n for n in range(NEWEST, most - 1, -1) if n > 18]
    x = np.ones((2, 3), "float32")
    (found,) = compile(tmp_path / "m.onnx")(x).values()
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-6)


def test_without_a_runtime_it_is_a_constant(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert save(T.exp(X), tmp_path / "m.onnx").opset_import[0].version == 21
    assert save(T.exp(X), tmp_path / "m.onnx", opset=19).opset_import[0].version == 19


def test_the_installed_runtime_runs_the_default(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    codes = T.nnet.dequantize(T.nnet.quantize(X, 0.1), 0.1)
    save(codes, tmp_path / "m.onnx")
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, codes.eval({X: x}), atol=1e-6)


@pytest.mark.parametrize("opset", range(newest.OLDEST_OPSET, NEWEST + 1))
def test_the_trial_is_a_sound_model(opset):
    typed = infer_shapes(newest.trial(opset), check_type=True, strict_mode=True)
    assert all(v.type.HasField("tensor_type") for v in typed.graph.output)


def test_the_trial_has_every_op_that_changed():
    """A runtime that takes an opset without one of the ops that are written would fail later."""
    text = "".join(p.read_text() for p in Path(newest.__file__).parent.glob("*.py")
                   if p.name != "newest.py")  # fmt: skip
    strings = set(re.findall(r'"([A-Z][A-Za-z]+)"', text))
    # Names of symdnn's ops that are no names of nodes here.
    strings -= {"Scatter", "CumProd"}
    changed = {s.name for s in onnx.defs.get_all_schemas_with_history()
               if not s.domain and s.since_version > newest.WITHOUT_RUNTIME}  # fmt: skip
    tried = {n.op_type for n in newest.trial(NEWEST).graph.node}
    assert strings & changed == tried
