"""Extremes of no elements in kernels that compute several things: the errors of their ops."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ShapeMismatch
from symdnn.graph.evaluate import evaluate


def _stable(x: Any) -> list[Any]:
    top = x.max(axis=-1, keepdims=True)
    return [T.exp(x - top), top]


def _with_all(x: Any) -> list[Any]:
    y = x * 2
    d = y - y.mean(-1, keepdims=True)
    return [d * x, (d * d).max()]


NEED_ELEMENTS = {
    "rows": lambda x: [x.max(axis=-1)],
    "kept": _stable,
    "all beside rows": lambda x: [x.min(), x.max(axis=-1)],
    "all of rows": _with_all,
    "of results": lambda x: [T.log_softmax(x, axis=-1), T.exp(T.log_softmax(x, axis=-1)).min()],
    "none": lambda x: [T.log_softmax(x, axis=-1), T.exp(x.sum(axis=-1, keepdims=True)) * x],
}


def _error(run: Callable[[], Any]) -> str:
    """What is wrong, without a word that rewrites may change; empty if nothing is."""
    try:
        run()
    except ShapeMismatch as error:
        return re.sub("keepdims=(True|False)", "", str(error).splitlines()[0])
    return ""


@pytest.mark.parametrize("name", NEED_ELEMENTS)
@pytest.mark.parametrize("shape", [(3, 0), (0, 40), (0, 0), (2, 40)])
def test_extremes_of_no_elements_are_errors_of_their_ops(name, shape, fake_device):
    """In plans of a GPU, on the device, and by references: the words name all axes."""
    x = T.matrix("x", dtype="float32")
    outputs = NEED_ELEMENTS[name](x)
    value = np.zeros(shape, "float32")
    wanted = {_error(lambda v=v: evaluate([v], {x: value})) for v in outputs}
    wanted = wanted - {""} or wanted
    on_gpu = symdnn.function([x], outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    graph = on_gpu.fgraph
    assert _error(lambda: on_gpu(value)) in wanted
    assert _error(lambda: on_gpu.stages.specialise({"x": shape})) in wanted
    assert _error(lambda: evaluate(graph.outputs, {graph.inputs[0]: value})) in wanted
