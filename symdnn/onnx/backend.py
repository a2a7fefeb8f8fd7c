"""symdnn as a backend of the package ``onnx``: what runs its official tests.

::

    import symdnn.onnx.backend as backend

    (y,) = backend.run_model(onnx.load("net.onnx"), [x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from symdnn.compile.execute.targets import resolve_target
from symdnn.compile.program.mode import Mode
from symdnn.errors import CudaUnavailable, CudnnError
from symdnn.onnx.call import CompiledGraph
from symdnn.onnx.graph import load

__all__ = ["SymdnnBackend", "SymdnnRep", "prepare", "run_model", "run_node", "supports_device"]


class SymdnnRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, compiled: CompiledGraph) -> None:
        self.compiled = compiled

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the order of the model, of inputs in its order or by name."""
        if isinstance(inputs, dict):
            found = self.compiled(**inputs)
        else:
            given = inputs if isinstance(inputs, list | tuple) else [inputs]
            found = self.compiled(*(_array(v) for v in given))
        return tuple(found.values())


class SymdnnBackend(Backend):
    """The interface of ``onnx.backend.base.Backend``. Devices are ``CPU`` and ``CUDA``."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", mode: Any = None, **kwargs: Any) -> SymdnnRep:
        """``model`` as an object with a method ``run``; ``mode`` is that of ``symdnn.function``.

        Raises :class:`~symdnn.errors.ModelError` for models that symdnn does not run.
        """
        kind = Device(device).type
        chosen = (
            mode if mode is not None else Mode(target="cuda" if kind == DeviceType.CUDA else "cpu")
        )
        return SymdnnRep(CompiledGraph(load(model), chosen))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """The outputs of ``model``."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node of the newest opset (or of ``opset_version``)."""
        arrays = [_array(v) for v in inputs]
        names = [n for n in node.input if n]
        ins = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays)
        ]
        outs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = helper.make_graph([node], "node", ins, outs)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        opsets = [helper.make_opsetid("", version)]
        if node.domain not in ("", "ai.onnx"):
            opsets.append(helper.make_opsetid(node.domain, 1))
        model = helper.make_model(graph, opset_imports=opsets)
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``device`` (``CPU``, ``CUDA``, ``CUDA:0``) is here."""
        kind = Device(device).type
        if kind != DeviceType.CUDA:
            return bool(kind == DeviceType.CPU)
        try:
            resolve_target("cuda")
        except (CudaUnavailable, CudnnError):
            return False
        return True

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be read: its inputs have types that symdnn has."""
        try:
            load(model)
        except ValueError:
            return False
        return cls.supports_device(device)


def _array(value: Any) -> Any:
    """A value of the official tests as arrays, lists and None."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_array(v) for v in value]
    return value


prepare = SymdnnBackend.prepare
run_model = SymdnnBackend.run_model
run_node = SymdnnBackend.run_node
supports_device = SymdnnBackend.supports_device
