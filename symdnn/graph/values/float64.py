"""Reports of float64 in a graph (flag ``warn_float64``).

On a GPU float64 is slow. It often comes from an integer or a NumPy number by which all following
values become float64 unintentionally.
"""

from __future__ import annotations

import warnings

from symdnn.config import config
from symdnn.errors import TypeMismatch
from symdnn.graph.origin import Origin, make_origin
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Shared


def report_float64_node(node: Apply) -> None:
    """Report ``node`` as the flag says if it makes float64 of inputs of other dtypes."""
    made = any(_is_double(v.type) for v in node.outputs)
    if made and not all(_is_double(v.type) for v in node.inputs):
        _report(str(node.op), [v.type for v in node.inputs], node.origin)


def report_float64_input(name: str | None) -> None:
    """Report an input of dtype float64 as the flag says."""
    _report(f"the variable {name}" if name else "a variable", "float64", make_origin())


def report_float64_shared(made: Shared) -> None:
    """Do what the flag says about a shared variable, if it is float64."""
    if config.warn_float64 != "ignore" and _is_double(made.type):
        name = f"the shared variable {made.name}" if made.name else "a shared variable"
        _report(name, "float64", make_origin(), 4)


def _is_double(type_: object) -> bool:
    return isinstance(type_, TensorType) and type_.dtype == "float64"


def _report(what: str, got: object, origin: Origin, level: int = 5) -> None:
    error = TypeMismatch(what, "no float64 (flag warn_float64)", got, "Cast to float32")
    text = f"{error}. It was made here:\n{origin.text()}"
    if config.warn_float64 == "raise":
        raise error
    if config.warn_float64 == "pdb":
        print(text)
        breakpoint()
    else:
        warnings.warn(text, UserWarning, stacklevel=level)
