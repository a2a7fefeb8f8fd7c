"""Declarations of ops of ``com.microsoft``, which the package onnx does not have."""

from __future__ import annotations

from typing import Any

from symdnn.onnx.model.node import Builder, Node
from symdnn.onnx.model.values import Sequence as Tensors


def known(build: Builder, inputs: int, attributes: str = "") -> Builder:
    """``build`` for nodes of which it knows everything.

    It reads the first ``inputs`` inputs and the named ``attributes``. A node with others is
    refused, unless the attribute is 0 or empty: to ignore it would give a wrong result.
    """
    names = set(attributes.split())

    def strict(node: Node) -> Any:
        for i in range(inputs, len(node.inputs)):
            if node.has(i):
                raise node.error(f"input {i} is not known; symdnn reads the first {inputs}")
        for name, value in node.attributes.items():
            given = value not in (0, "", [], "NONE") if not hasattr(value, "shape") else True
            if name not in names and given:
                raise node.error(f"the attribute {name} = {value!r:.60} is not known")
        found = build(node)
        results = found if isinstance(found, list | tuple) else [found]
        results = [found] if isinstance(found, Tensors) else results
        for i, wanted in enumerate(node.wanted):
            if wanted and (i >= len(results) or results[i] is None):
                raise node.error(f"output {i} is wanted, which symdnn does not compute")
        return found

    return strict
