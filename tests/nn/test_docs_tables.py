"""The tables of docs/nn.md: every module there is made and called, every network is counted."""

import re
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn

PAGE = (Path(__file__).parents[2] / "docs" / "nn.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
CALLS = [r for r in ROWS if " to (" in r[-1] and "nn.models." not in r[0]]
COUNTED = [(r[0].strip("`"), int(r[1].replace(",", ""))) for r in ROWS if "nn.models." in r[0]]


def calls_of(row):
    """The modules that a row names, ours first."""
    return [c.strip("`") for c in row[:-1] if c.startswith("`nn.")]


def output(module, values):
    kinds = [T.TensorType(v.dtype.name, (None,) * v.ndim)() for v in values]
    return symdnn.function(kinds, module.evaluate()(*kinds))(*values)


@pytest.mark.parametrize("row", CALLS, ids=lambda r: calls_of(r)[0])
def test_a_row_has_the_shapes_it_says_and_both_names_compute_the_same(row):
    before, after = re.fullmatch(r"(\(.*\)) to (\(.*\))", row[-1]).groups()
    shapes = [eval(f"({s})") for s in re.findall(r"\([\d, ]*\)", before)]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shapes[0]).astype("float32")]
    values += [rng.integers(0, 5, s).astype("int32") for s in shapes[1:]]
    modules = [eval(call, {"nn": nn}) for call in calls_of(row)]
    for m in modules[1:]:
        m.load_state_dict(modules[0].state_dict())
    found = [output(m, values) for m in modules]
    assert found[0].shape == eval(after)
    for value in found[1:]:
        np.testing.assert_allclose(value, found[0], rtol=1e-4, atol=1e-5)


def test_the_page_has_every_module_of_cudnn_torch():
    """Those of its README, R5 and later."""
    spatial = ("Convolution", "MaxPooling", "AveragePooling", "SoftMax", "LogSoftMax")
    names = {f"{d}{n}" for d in ("Spatial", "Volumetric") for n in spatial}
    names |= {f"{d}CrossEntropyCriterion" for d in ("Spatial", "Volumetric")}
    names |= {f"{d}BatchNormalization" for d in ("", "Spatial", "Volumetric")}
    names |= {"ReLU", "ClippedReLU", "Tanh", "Sigmoid", "SoftMax", "LogSoftMax"}
    names |= {"RNNReLU", "RNNTanh", "LSTM", "GRU", "BLSTM"}
    for name in sorted(names):
        assert f"`cudnn.{name}(" in PAGE, name
        assert f"`nn.{name}(" in PAGE, name


@pytest.mark.parametrize(("call", "wanted"), COUNTED, ids=lambda v: str(v))
def test_a_network_has_the_parameters_it_says(call, wanted):
    with nn.init.skipped():
        net = eval(call, {"nn": nn})
    assert sum(p.get_value(borrow=True).size for p in net.parameters()) == wanted


def test_rows_are_found():
    assert len(CALLS) > 45
    assert len(COUNTED) == 24
