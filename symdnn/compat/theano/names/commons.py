"""Names that Theano's modules have because they import them, and that programs read there."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []

_MODULES = {
    "theano": "theano", "tensor": "theano.tensor", "T": "theano.tensor", "gof": "theano.gof",
    "scalar": "theano.scalar", "scal": "theano.scalar", "gradient": "theano.gradient",
    "printing": "theano.printing", "compile": "theano.compile", "elemwise": "theano.tensor",
    "subtensor": "theano.tensor", "basic": "theano.tensor", "nlinalg": "theano.tensor.nlinalg",
    "slinalg": "theano.tensor.slinalg", "graph": "theano.gof.graph", "utils": "theano.gof.utils",
    "extra_ops": "theano.tensor.extra_ops", "debugmode": "theano.compile.debugmode",
    "raw_random": "theano.tensor.raw_random", "compat": "theano.compat",
    "cudnn_defs": "theano.gpuarray.cudnn_defs",
}  # fmt: skip
_NAMES = {
    "theano": (
        "config change_flags function shared clone scan grad In Out Param OrderedUpdates "
        "FunctionGraph pprint get_scalar_constant_value"
    ),
    "theano.gof": (
        "Apply Op PureOp Variable Constant Type Generic generic MethodNotDefined null_type "
        "NullType DisconnectedType is_same_graph MissingInputError InconsistencyError hashtype "
        "get_debug_values"
    ),
    "theano.gradient": "disconnected_type grad_undefined grad_not_implemented verify_grad",
    "theano.compile": (
        "SharedVariable Mode get_mode get_default_mode DebugMode FAST_RUN FAST_COMPILE "
        "predefined_modes OpFromGraph"
    ),
    "theano.tensor": (
        "TensorType TensorVariable TensorConstant as_tensor_variable get_vector_length cast "
        "NotScalarConstantError patternbroadcast alloc set_subtensor inc_subtensor Alloc Join "
        "AsTensorError Elemwise CAReduce DimShuffle Sum Prod Subtensor IncSubtensor Argmax"
    ),
    "theano.tensor.nnet.abstract_conv": (
        "AbstractConv2d AbstractConv2d_gradInputs AbstractConv2d_gradWeights AbstractConv3d "
        "AbstractConv3d_gradInputs AbstractConv3d_gradWeights get_conv_output_shape "
        "assert_conv_shape"
    ),
    "theano.gpuarray": (
        "HostFromGpu GpuFromHost as_gpuarray_variable gpu_contiguous infer_context_name "
        "list_contexts get_context GpuArrayType GpuAllocEmpty GpuArraySharedVariable"
    ),
    "theano.scalar": "upcast as_scalar get_scalar_type",
    "theano.compat": "izip imap ifilter reduce OrderedDict PY3",
    "theano.raise_op": "Raise",
    "theano.tensor.opt": "Assert",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in ("logger", "_logger", "theano_logger"):
        import logging

        return logging.getLogger("theano")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(name)
