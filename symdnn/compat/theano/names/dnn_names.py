"""Names of ``theano.gpuarray.dnn``, and of 0.9's ``theano.sandbox.cuda.dnn``, that
:mod:`symdnn.gpu.dnn` lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names import cudnn_defs
from symdnn.compat.theano.names.class_names import stand_in
from symdnn.compat.theano.names.types import DisconnectedType, grad_not_implemented
from symdnn.compat.theano.names.user_ops import Apply, Op
from symdnn.compat.theano.settings import config
from symdnn.flags import FLAGS, SEARCH
from symdnn.gpu import dnn
from symdnn.graph.variable import Shared, Variable, as_variable, constant
from symdnn.libraries.table import ALL_RULES
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.shape import shape_i
from symdnn.ops.elementwise.math import Log
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad
from symdnn.ops.nn.softmax import LogSoftmax
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Apply", "Assert", "AveragePoolGrad", "DNN_CONV_ALGO_CHOOSE_ONCE",
    "DNN_CONV_ALGO_CHOOSE_TIME", "DisconnectedType", "GpuDnnBatchNormBase",
    "GpuDnnConv3d", "GpuDnnConv3dGradI",
    "GpuDnnConv3dGradW", "GpuDnnDropoutOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights",
    "Log", "LogSoftmax", "MaxPoolGrad", "Op",
    "SUPPORTED_DNN_CONV_ALGO_BWD_DATA", "SUPPORTED_DNN_CONV_ALGO_BWD_FILTER",
    "SUPPORTED_DNN_CONV_ALGO_FWD", "SUPPORTED_DNN_CONV_ALGO_RUNTIME",
    "SUPPORTED_DNN_CONV_PRECISION", "WIN32_CUDNN_NAMES", "_get_param_size", "_load_lib",
    "_make_dropout_desc", "_make_rnn_desc", "_split_rnn_params", "config", "cudnn_defs",
    "dnn_batch_normalization_test", "dnn_batch_normalization_train", "dropoutdesc_type",
    "ensure_float", "gpudata_type", "grad_not_implemented", "raise_no_cudnn", "rnndesc_type",
    "shape_i", "softmax",
]  # fmt: skip

SUPPORTED_DNN_CONV_ALGO_RUNTIME = tuple(SEARCH.split())
SUPPORTED_DNN_CONV_ALGO_FWD = FLAGS["dnn.conv.algo_fwd"].choices
SUPPORTED_DNN_CONV_ALGO_BWD_DATA = FLAGS["dnn.conv.algo_bwd_data"].choices
SUPPORTED_DNN_CONV_ALGO_BWD_FILTER = FLAGS["dnn.conv.algo_bwd_filter"].choices
SUPPORTED_DNN_CONV_PRECISION = ("as_input_f32", "as_input", "float16", "float32", "float64")
#: Bits of ``choose_algo`` in Theano's C code.
DNN_CONV_ALGO_CHOOSE_ONCE, DNN_CONV_ALGO_CHOOSE_TIME = 1, 2
WIN32_CUDNN_NAMES = ["cudnn64_7.dll", "cudnn64_6.dll", "cudnn64_5.dll"]
#: Types of variables in Theano's graphs; symdnn's descriptors are plain data (``dnn.dropout``).
gpudata_type = dnn.CUDNNDataType("gpudata *", "gpudata_release")
dropoutdesc_type = dnn.CUDNNDataType("cudnnDropoutDescriptor_t", "cudnnDestroyDropoutDescriptor")
rnndesc_type = dnn.CUDNNDataType("cudnnRNNDescriptor_t", "cudnnDestroyRNNDescriptor")
_zero, _one = constant(np.asarray(0.0, "float64")), constant(np.asarray(1.0, "float64"))
#: 0.9 had classes of their own for three dimensions.
GpuDnnConv3d, GpuDnnConv3dGradI = dnn.GpuDnnConv, dnn.GpuDnnConvGradI
GpuDnnConv3dGradW = dnn.GpuDnnConvGradW
GpuDnnBatchNormBase = dnn.DnnBase


def _load_lib(name: str) -> Any:
    """A library by its name, as a ctypes ``CDLL``; None if there is none."""
    import ctypes

    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


# -- ops by hand, whose constructors and inputs differ from those of symdnn's ----------------------


def _make_dropout_desc(
    dropout: object, seed: object, context_name: object = None
) -> tuple[Any, Any]:
    """``(descriptor, states)`` of dropout: its probability, and a shared variable of the draws."""
    made = dnn._DropoutDescriptor(context_name)(dropout, seed, context_name)
    return made, RandomStream(made.seed).new_state()


def _settings(desc: Any) -> dict[str, Any]:
    s = desc.shape
    return {"hidden_size": s.hidden_size, "num_layers": s.num_layers, "input_mode": s.input_mode,
            "dropout": desc.dropout.dropout}  # fmt: skip


class _Dropout:
    """``GpuDnnDropoutOp(inplace)(inp, descriptor, state)``: (y, reserve, next state)."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def __call__(self, inp: Any, descriptor: Any, state: Any) -> list[Variable]:
        y, new, reserve = dnn.GpuDnnDropoutOp(dropout=descriptor.dropout)(state, as_variable(inp))
        return [y, reserve, new]


class _GradInputs:
    """``GpuDnnRNNGradInputs(rnn_mode, grad_h, grad_c)``: (reserve, dx, dhx, [dcx]).

    The inputs are (desc, x, y, dy, dhy, dcy, w, hx, cx, reserve); ``dhy`` counts only with
    ``grad_h``, ``dcy`` only with ``grad_c``.
    """

    def __init__(self, rnn_mode: str, grad_h: bool, grad_c: bool) -> None:
        self.rnn_mode, self.grad_h, self.grad_c = rnn_mode, grad_h, grad_c

    def __call__(
        self, desc: Any, x: Any, y: Any, dy: Any, dhy: Any, dcy: Any, w: Any, hx: Any, cx: Any,
        reserve: Any,
    ) -> list[Variable]:  # fmt: skip
        op = dnn.GpuDnnRNNGradInputs(self.rnn_mode, desc.shape.direction_mode, **_settings(desc))
        states, grads = [hx], [dhy if self.grad_h else T.zeros_like(hx)]
        if op.has_cell:
            states.append(cx)
            grads.append(dcy if self.grad_c else T.zeros_like(cx))
        *found, after = op(w, x, *states, y, dy, *grads, reserve)
        return [after, *found]


class _GradWeights:
    """``GpuDnnRNNGradWeights()(desc, x, hx, y, reserve, w)``: dw."""

    def __call__(self, desc: Any, x: Any, hx: Any, y: Any, reserve: Any, w: Any) -> Variable:
        modes = desc.shape.rnn_mode, desc.shape.direction_mode
        return dnn.GpuDnnRNNGradWeights(*modes, **_settings(desc))(w, x, hx, y, reserve)


def _stand_in(maker: Any) -> Any:
    name = {"_Dropout": "GpuDnnDropoutOp", "_GradInputs": "GpuDnnRNNGradInputs"}.get(
        maker.__name__, "GpuDnnRNNGradWeights"
    )
    return stand_in(name, maker, f"vendor.gpudnn.{name}")


GpuDnnDropoutOp, GpuDnnRNNGradInputs = _stand_in(_Dropout), _stand_in(_GradInputs)
GpuDnnRNNGradWeights = _stand_in(_GradWeights)


# -- functions ------------------------------------------------------------------------------------


def _make_rnn_desc(
    hidden_size: Any, num_layers: Any, ddesc: Any, rnn_mode: str, input_mode: str,
    direction_mode: str, dtype: str, context_name: object = None,
) -> Any:  # fmt: skip
    """The descriptor of a recurrent network."""
    return dnn._RNNDescriptor(context_name)(
        hidden_size, num_layers, ddesc, input_mode, direction_mode, rnn_mode, dtype
    )


def _get_param_size(desc: Any, input_size: Any, dtype: str, context_name: Any = None) -> Any:
    """The number of parameters of a recurrent network."""
    return dnn._RNNParamSize(context_name)(desc, input_size, dtype)


def _split_rnn_params(
    w: Shared, desc: Any, layer: int, input_size: Any, dtype: str, rnn_mode: str
) -> Any:
    """The matrices and biases of a layer as views of the vector ``w``."""
    return dnn._RNNSplitParams(rnn_mode)(w, desc, layer, input_size, dtype)


def ensure_float(val: object, default: float, name: str) -> Variable:
    """0.9's ``ensure_dt`` of float32."""
    return dnn.ensure_dt(val, default, name, "float32")


def raise_no_cudnn(msg: str = "Please update driver/CUDA/cuDNN.") -> None:
    """Raise ``RuntimeError`` that says why cuDNN can't be used."""
    raise RuntimeError(f"cuDNN is required: {dnn.dnn_available.msg or msg}")


def softmax(x: object) -> Variable:
    """Softmax along axis 1, by cuDNN on a GPU."""
    return dnn.GpuDnnSoftmax("accurate", "channel")(as_variable(x))


def dnn_batch_normalization_train(
    inputs: object, gamma: object, beta: object, mode: str = "per-activation",
    epsilon: object = 1e-4,
    running_average_factor: object = 0.1, running_mean: object = None, running_var: object = None,
) -> Any:  # fmt: skip
    """:func:`symdnn.gpu.dnn.dnn_batch_normalization_train`. One running value alone is refused."""
    if (running_mean is None) != (running_var is None):
        raise ValueError("dnn_batch_normalization_train: give both running values, or none")
    return dnn.dnn_batch_normalization_train(
        inputs, gamma, beta, mode, epsilon, running_average_factor, running_mean, running_var
    )


dnn_batch_normalization_test = dnn.dnn_batch_normalization_test


def __getattr__(name: str) -> Any:
    """``local_softmax_dnn``, ...: symdnn's rewrite that goes by this name of Theano's."""
    for rule in ALL_RULES if name.startswith("local_") else ():
        if name == rule.name or name in rule.tags:
            return rule
    raise AttributeError(name)
