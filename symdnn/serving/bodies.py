"""Bodies of requests and answers: JSON, ``.npy``, safetensors; read within their own size."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.io import npz, safetensors

Array = np.ndarray[Any, Any]
JSON, NPY, SAFETENSORS = "application/json", "application/x-npy", "application/x-safetensors"


def read(body: bytes, kind: str, names: Sequence[str]) -> dict[str, Any]:
    """Values by the names of inputs; raises ``ValueError`` for what is none."""
    if kind == NPY:
        if len(names) != 1:
            raise ValueError(f"an .npy is one array, and the inputs are {', '.join(names)}")
        return {names[0]: npz.read_array(io.BytesIO(body), len(body), "the body")}
    if kind == SAFETENSORS:
        arrays, _ = safetensors.read_from(io.BytesIO(body), len(body), Path("the body"))
        return dict(arrays)
    found = json.loads(body)
    given = found.get("inputs") if isinstance(found, dict) else None
    if isinstance(given, list):
        if len(given) > len(names):
            raise ValueError(f"{len(given)} inputs, wanted {len(names)}")
        return dict(zip(names, given))
    if not isinstance(given, dict):
        raise ValueError('wanted {"inputs": {name: values}} or {"inputs": [values]}')
    return given


def write(results: Mapping[str, Array], kind: str) -> bytes:
    """The body of an answer; raises ``ValueError`` where the kind cannot hold it."""
    if kind == NPY:
        if len(results) != 1:
            raise ValueError(f"an .npy is one array, and the outputs are {', '.join(results)}")
        out = io.BytesIO()
        np.lib.format.write_array(out, next(iter(results.values())), allow_pickle=False)
        return out.getvalue()
    if kind == SAFETENSORS:
        arrays = {k: np.ascontiguousarray(v).reshape(v.shape) for k, v in results.items()}
        return safetensors.write(arrays, "results", Path("the answer"))
    return json.dumps({"outputs": {k: _plain(v) for k, v in results.items()}}).encode()


def _plain(value: Array) -> Any:
    """Numbers in lists; what JSON has no number for is a string: NaN, Infinity, -Infinity."""
    if value.dtype.kind == "c":
        raise ValueError("JSON has no complex numbers: ask for safetensors")
    wide = value.astype(np.float32) if value.dtype.name == "bfloat16" else value
    if wide.dtype.kind == "f" and not np.isfinite(wide).all():
        return _named(wide.tolist())
    return wide.tolist()


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(v) for v in value]
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
