"""A convolution, and what follows it in the same kernel, as a graph of cuDNN's frontend.

Tensors are described by logical shapes (N, C, sizes) and by strides, which say the layout; groups
follow from the channels. A volume has five dimensions, everything else four.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.errors import CudnnArgumentError
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.signature import ConvSignature

__all__ = [
    "ACTIVATIONS", "ALIGNMENT", "TYPES", "UIDS", "Epilogue", "factor_values", "new_graph",
    "strides",
]  # fmt: skip

#: Bytes of which every pointer has to be a multiple: what the frontend tells cuDNN of each tensor.
ALIGNMENT = 16

#: Activations by symdnn's names, and the frontend's methods for them.
ACTIVATIONS = {
    "relu": "relu", "leaky_relu": "leaky_relu", "sigmoid": "sigmoid", "tanh": "tanh", "elu": "elu",
    "softplus": "softplus", "gelu": "gelu", "gelu_tanh": "gelu_approx_tanh", "swish": "swish",
}  # fmt: skip

#: cuDNN's types of data by symdnn's dtypes.
TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
#: Numbers of the graph's arguments, by their roles.
UIDS = {"x": 1, "w": 2, "y": 3, "bias": 4, "residual": 5}
_FACTORS = {"alpha": 6, "beta": 7}


@dataclass(frozen=True)
class Epilogue:
    """What follows a forward convolution: ``activation(alpha * conv + beta * residual + bias)``.

    ``bias`` has the shape (1, K, 1, 1) (K and the signature's dtype), ``residual`` the shape,
    dtype and layout of the result. In between everything is float32 (float64 for float64).
    ``slope`` is that of ``leaky_relu`` left of 0.
    One of ``alpha`` and ``beta`` may differ from 1.

    On an H200 (cuDNN 9.19) cuDNN has ready-made kernels for a bias, with or without a residual, and
    ``relu`` or nothing; they cost what the convolution alone does, and reading the residual. Other
    epilogues it compiles when a plan is built, 0.3 s each, and for NHWC only.

    >>> str(Epilogue(bias=True, residual=True, activation="relu"))
    'relu(conv + residual + bias)'
    """

    bias: bool = False
    residual: bool = False
    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        if self.activation and self.activation not in ACTIVATIONS:
            raise CudnnArgumentError(
                f"activation of a convolution: wanted one of {', '.join(ACTIVATIONS)}, "
                f"got {self.activation!r}"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """Its arguments: keys of a launch's pointers, beside those of the convolution."""
        return ("bias",) * self.bias + ("residual",) * self.residual

    @property
    def is_empty(self) -> bool:
        """Whether the convolution is all there is."""
        return not self.roles and not self.activation and self.alpha == 1

    def __str__(self) -> str:
        conv = "conv" if self.alpha == 1 else f"{self.alpha:g} * conv"
        residual = "residual" if self.beta == 1 else f"{self.beta:g} * residual"
        inside = " + ".join([conv] + [residual] * self.residual + ["bias"] * self.bias)
        return f"{self.activation}({inside})" if self.activation else inside


def strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Elements between neighbours, by dimension, where ``layout`` is NCHW or NHWC.

    >>> strides((2, 3, 4, 5), "NHWC")
    (60, 1, 15, 3)
    """
    if layout == "NCHW":
        return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    _, c, *sizes = shape
    inner = (c * prod(sizes[i + 1 :]) for i in range(len(sizes)))
    return (c * prod(sizes), 1, *inner)


def factor_values(s: ConvSignature, e: Epilogue) -> dict[int, Any]:
    """The factors that the graph reads from the host, as values of C, by their numbers."""
    kind = ctypes.c_double if _between(s) == "float64" else ctypes.c_float
    wanted = {"alpha": e.alpha, "beta": e.beta if e.residual else 1.0}
    return {_FACTORS[name]: kind(value) for name, value in wanted.items() if value != 1}


def new_graph(s: ConvSignature, handle: int | None, epilogue: Epilogue) -> Any:
    """A graph of the frontend with its operations described; plans it has none.

    Without a handle it is checked as far as that goes without a device. Raises what the frontend
    raises where it, or cuDNN, can't express it.
    """
    with_handle = {} if handle is None else {"handle": handle}
    between = _type(_between(s))
    graph = frontend.graph_class()(
        name="symdnn_conv", io_data_type=_type(s.dtype), intermediate_data_type=between,
        compute_data_type=between, **with_handle,
    )  # fmt: skip
    result, role = _convolution(graph, s)
    if not epilogue.is_empty:
        result = _followed_by(graph, s, epilogue, result)
    shape = getattr(s, role)
    result.set_output(True).set_data_type(_type(s.dtype)).set_uid(UIDS[role])
    result.set_dim(list(shape)).set_stride(list(strides(shape, s.layout)))
    graph.validate()
    if handle is not None:
        graph.build_operation_graph()
    return graph


def _convolution(graph: Any, s: ConvSignature) -> tuple[Any, str]:
    """The convolution's node: its result, and which of x, w, y that is."""
    mode = frontend.compiled().convolution_mode
    settings = {
        "padding": list(s.padding), "stride": list(s.stride), "dilation": list(s.dilation),
        "convolution_mode": mode.CONVOLUTION if s.flip else mode.CROSS_CORRELATION,
        "compute_data_type": _type(s.compute),
    }  # fmt: skip
    if s.direction == "fwd":
        x, w = _operand(graph, s, "x"), _operand(graph, s, "w")
        return graph.conv_fprop(image=x, weight=w, **settings), "y"
    dy = _operand(graph, s, "y")
    if s.direction == "bwd_data":
        return graph.conv_dgrad(loss=dy, filter=_operand(graph, s, "w"), **settings), "x"
    return graph.conv_wgrad(image=_operand(graph, s, "x"), loss=dy, **settings), "w"


def _followed_by(graph: Any, s: ConvSignature, e: Epilogue, y: Any) -> Any:
    """The epilogue's nodes, in the order of cuDNN's own kernels of convolution and bias."""
    between = _type(_between(s))

    def virtual(value: Any) -> Any:
        # Left to itself the frontend gives every result channels last.
        value.set_dim(list(s.y)).set_stride(list(strides(s.y, s.layout)))
        return value.set_data_type(between)

    y = virtual(y)
    if e.alpha != 1:
        y = virtual(graph.mul(a=y, b=_factor(graph, s, "alpha")))
    if e.residual:
        z = _tensor(graph, s, "residual", s.y)
        if e.beta != 1:
            z = virtual(graph.mul(a=z, b=_factor(graph, s, "beta")))
        y = virtual(graph.add(a=y, b=z))
    if e.bias:
        shape = (1, s.w[0], *(1 for _ in s.y[2:]))
        y = virtual(graph.bias(input=y, bias=_tensor(graph, s, "bias", shape)))
    if e.activation:
        slope = {"negative_slope": e.slope} if e.activation == "leaky_relu" else {}
        y = getattr(graph, ACTIVATIONS[e.activation])(input=y, **slope)
    return y


def _operand(graph: Any, s: ConvSignature, role: str) -> Any:
    return _tensor(graph, s, role, getattr(s, role))


def _tensor(graph: Any, s: ConvSignature, role: str, shape: Sequence[int]) -> Any:
    return graph.tensor(
        dim=list(shape), stride=list(strides(shape, s.layout)), data_type=_type(s.dtype),
        uid=UIDS[role], name=role,
    )  # fmt: skip


def _factor(graph: Any, s: ConvSignature, name: str) -> Any:
    """A number that a launch reads from the host."""
    ones = [1] * len(s.y)
    return graph.tensor(
        dim=ones, stride=ones, data_type=_type(_between(s)), is_pass_by_value=True,
        uid=_FACTORS[name], name=name,
    )  # fmt: skip


def _between(s: ConvSignature) -> str:
    """The dtype of what never reaches memory."""
    return "float64" if s.dtype == "float64" else "float32"


def _type(dtype: str) -> Any:
    return getattr(frontend.compiled().data_type, TYPES[dtype])
