"""Need 25: tell me what did not go to the GPU or to cuDNN, and why.

The report lists each node with what runs it and the reason why it was not lowered; a flag makes
that an error with the user's line; a float64 input by mistake is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import Function, Mode, config, function
from symdnn.errors import InputError, NotLowered, TypeMismatch
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType


@dataclass(frozen=True)
class Rounded(Op):
    """An op of the user's own, which has no kernel for a GPU."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.round(x, 1)

    def shapes(self, types, shapes, host):
        return [shapes[0]]


def net(target: str) -> Function:
    x, w = T.ftensor4("x"), T.ftensor4("w")
    y = T.nnet.conv2d(x, w)
    z = Rounded()(y)  # the line of the user's op
    return function([x, w], T.tanh(z * 2 + 1).sum(), mode=Mode(target=target))


def own_line() -> int:
    with open(__file__) as file:
        return 1 + [line.endswith("# the line of the user's op\n") for line in file].index(True)


def assert_each_node_has_its_place(f: Function) -> None:
    report = f.lowering_report()
    assert {row.node for row in report.rows} >= set(f.fgraph.nodes)
    rows = {type(row.node.op).__name__: row for row in report.rows}
    own, conv = rows["Rounded"], rows["GpuDnnConv"]
    assert (own.target, own.line) == ("cpu", f"{__file__}:{own_line()}")
    assert "on the host: there is no cuda kernel for Rounded" in own.why
    assert conv.target.startswith("cuda0")
    assert not conv.why
    assert f"Rounded  {__file__}:{own_line()}\n" in str(report)


def test_the_report_lists_each_node_with_its_place_and_the_reason() -> None:
    assert_each_node_has_its_place(net("cuda:sm_90"))


def test_the_reason_why_cudnn_does_not_run_a_node_is_listed() -> None:
    x, w = T.ftensor4("x"), T.ftensor4("w")
    mode = Mode(target="cuda:sm_90").excluding("cudnn")
    f = function([x, w], T.nnet.conv2d(x, w), mode=mode)
    (row,) = [r for r in f.lowering_report().rows if "Conv" in r.op]
    assert "not by cuDNN: " in row.why
    assert "cudnn" in row.why.removeprefix("not by cuDNN: ")


@pytest.mark.parametrize("flag", ["assert_lowered", "assert_no_cpu_op"])
def test_compiling_fails_with_the_users_line(flag: str) -> None:
    with config.change_flags({flag: "raise"}), pytest.raises(NotLowered) as caught:
        net("cuda:sm_90")
    assert f"Rounded, made at {__file__}:{own_line()}: there is no cuda" in str(caught.value)
    with config.change_flags({flag: "warn"}), pytest.warns(RuntimeWarning, match="Rounded, made"):
        net("cuda:sm_90")


def test_a_float64_input_by_mistake_is_named() -> None:
    x = T.fmatrix("x")
    with config.change_flags(warn_float64="raise"):
        with pytest.raises(TypeMismatch, match="the variable features: wanted no float64"):
            T.dmatrix("features")
        with pytest.raises(TypeMismatch, match=r"Mul: wanted no float64.* Cast to float32"):
            x * np.full(3, 0.1)
    f = function([x], x * 2, mode=Mode(target="cpu"))
    with pytest.raises(InputError, match=r"input 0 \(x\): wanted float32\(\?, \?\), got float64"):
        f(np.full((2, 2), 0.1))
    features = T.dmatrix("features")
    g = function([features, x], T.dot(features, x), mode=Mode(target="cuda:sm_90"))
    assert "GEMMs and convolutions: 1 of float64" in str(g.lowering_report())


@pytest.mark.gpu
def test_on_a_card(card: object) -> None:
    f = net("cuda")
    f(np.ones((2, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32"))
    assert_each_node_has_its_place(f)
    kernels = f.lowering_report().kernels()
    assert "not planned" not in kernels
