"""Small models of onnx for tests, from text in onnx's own notation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


def model(graph: str, opset: int = 21, functions: str = "", **arrays: Any) -> Any:
    """A model from the text of its graph; ``arrays`` are initialisers by name."""
    head = f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1, "local": 1]>'
    made = parser.parse_model(f"{head}\n{graph}\n{functions}")
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()
    )
    return made


def value(name: str, dtype: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def version() -> int:
    return int(onnx.defs.onnx_opset_version())
