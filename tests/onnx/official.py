"""The official tests of onnx: their models, and how results are compared."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from symdnn.onnx.backend import prepare
from tests.onnx.left_out import LEFT_OUT

#: Relative tolerances of two units in the last place: onnx's own runner has that of bfloat16. What
#: the tests expect in float16 is rounded after each step, and is up to one unit wrong itself.
HALVES = {"bfloat16": 2**-6, "float16": 2**-9}


@cache
def cases(kind: str) -> list[Any]:
    """All tests of a kind, each with its model and data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, where the tests compute what they expect
        return list(load_model_tests(kind=kind))


def reason(name: str) -> str | None:
    """Why a test is left out; None if it is not."""
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, name)), None)


def run(case: Any, mode: Any, atol: float = 0.0) -> None:
    """Raises AssertionError, or what symdnn raises, unless the outputs are as expected.

    ``atol`` is the least absolute tolerance: sums in another order than that of the test are not
    exactly 0.
    """
    path = case.model if case.model is not None else str(Path(case.model_dir) / "model.onnx")
    rep = None
    for inputs, wanted in data_of(case):
        rep = rep or prepare(path, "CPU", mode)
        outputs = rep.run(inputs)
        assert len(outputs) == len(wanted)
        for a, b in zip(outputs, wanted):
            compare(a, b, case.rtol, max(case.atol, atol))


def compare(a: Any, b: Any, rtol: float, atol: float) -> None:
    """As onnx's own runner: shapes, dtypes, values."""
    if b is None:
        assert a is None
        return
    if isinstance(b, list):
        assert len(a) == len(b)
        for p, q in zip(a, b):
            compare(p, q, rtol, atol)
        return
    b = np.asarray(b)
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if b.dtype.kind in "biuc" or b.dtype == np.float64:
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
        return
    rtol = max(rtol, HALVES.get(b.dtype.name, 0.0))
    np.testing.assert_allclose(a.astype("float32"), b.astype("float32"), rtol=rtol, atol=atol)


def data_of(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and wanted outputs of each set of data."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [plain(v) for v in inputs], [plain(v) for v in outputs]
        return
    folder = Path(case.model_dir)
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    for data in sorted(folder.glob("test_data_set*")):
        yield stored(data, "input", graph.input), stored(data, "output", graph.output)


def stored(folder: Path, word: str, infos: Any) -> list[Any]:
    found = []
    for i in range(len(list(folder.glob(f"{word}_*.pb")))):
        kind = infos[i].type
        proto: Any = onnx.TensorProto()
        if kind.HasField("sequence_type"):
            proto = onnx.SequenceProto()
        elif kind.HasField("optional_type"):
            proto = onnx.OptionalProto()
        proto.ParseFromString((folder / f"{word}_{i}.pb").read_bytes())
        found.append(plain(proto))
    return found


def plain(value: Any) -> Any:
    """A value of a test as arrays, lists and None."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
