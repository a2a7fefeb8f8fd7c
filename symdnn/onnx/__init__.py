"""Models in ONNX's format: other programs' networks, as graphs of symdnn and back.

::

    import symdnn.onnx

    f = symdnn.onnx.compile("resnet50.onnx")
    f(images)["logits"]

It needs the extra ``onnx``: ``pip install 'symdnn[onnx]'``.
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.errors import OnnxMissing
from symdnn.graph.names.elsewhere import refusing as _refusing

try:
    from symdnn.onnx.call import CompiledGraph, compile
    from symdnn.onnx.graph import Graph, Port, load
    from symdnn.onnx.save.model import save
except ModuleNotFoundError as error:
    if error.name != "onnx":
        raise
    text = "symdnn.onnx needs the package onnx: pip install 'symdnn[onnx]'"
    raise OnnxMissing(text) from error

__all__ = ["CompiledGraph", "Graph", "Port", "compile", "load", "save"]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "ONNX")
