"""Convolution as a graph of cuDNN's: what it describes, and which of its plans are wanted.

All three directions; images and volumes; NCHW and NHWC; and forward with an epilogue, which cuDNN
computes in the same kernel before the result is rounded to its dtype and written. Tensors are
described by logical shapes (N, C, sizes) and by strides, which say the layout; groups follow from
the channels. A volume has five dimensions, everything else four.

Without TF32 only engines without tensor cores are taken for float32, so that float32 means float32.
With it, those that round to 16 bits stay out. Sums in less than the signature's ``compute`` are
refused always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.errors import CudnnArgumentError
from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.cudnn.graph import GraphBuilder, GraphForm
from symdnn.gpu.cudnn.graph_plan import Limits

__all__ = ["ACTIVATIONS", "DTYPES", "ConvGraph", "Epilogue", "conv_graph", "strides"]

#: Dtypes that cuDNN convolves.
DTYPES = ("float16", "bfloat16", "float32", "float64")

#: Activations by symdnn's names, and the frontend's methods for them.
ACTIVATIONS = {
    "relu": "relu", "leaky_relu": "leaky_relu", "sigmoid": "sigmoid", "tanh": "tanh", "elu": "elu",
    "softplus": "softplus", "gelu": "gelu", "gelu_tanh": "gelu_approx_tanh", "swish": "swish",
}  # fmt: skip


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


def conv_graph(signature: ConvSignature, epilogue: Epilogue | None = None) -> ConvGraph:
    """The graph of a convolution and what follows it, without what does not concern a plan."""
    return ConvGraph(replace(signature, wanted="", on_unsupported=""), epilogue or Epilogue())


@dataclass(frozen=True)
class ConvGraph(GraphForm):
    """A convolution, and what follows it in the same kernel. :func:`conv_graph` makes it."""

    name = "symdnn_conv"

    signature: ConvSignature
    epilogue: Epilogue = Epilogue()

    @property
    def roles(self) -> tuple[str, ...]:
        return ("x", "w", "y", *self.epilogue.roles)

    @property
    def numbers(self) -> dict[str, float]:
        e = self.epilogue
        wanted = {"alpha": e.alpha, "beta": e.beta if e.residual else 1.0}
        return {name: value for name, value in wanted.items() if value != 1}

    @property
    def between(self) -> str:
        return "float64" if self.signature.dtype == "float64" else "float32"

    @property
    def limits(self) -> Limits:
        """By cuDNN's numerical notes and by workspace."""
        s, unwanted = self.signature, []
        if s.dtype == "float32":
            unwanted.append("DOWN_CONVERT_INPUTS")
            if not s.allow_tf32:
                unwanted.append("TENSOR_CORE")
        if s.compute != "float16":
            unwanted.append("REDUCED_PRECISION_REDUCTION")
        return Limits(tuple(unwanted), s.workspace_limit, s.deterministic)

    def refusal(self) -> str:
        s, e = self.signature, self.epilogue
        if s.dtype not in DTYPES or s.compute not in DTYPES:
            return f"no dtype of cuDNN: {s.dtype}, summed in {s.compute}"
        if any(prod(shape) == 0 for shape in (s.x, s.w, s.y)):
            return "it is empty"
        if not e.is_empty and s.direction != "fwd":
            return f"an epilogue follows a forward convolution, not {s.direction}"
        if e.alpha != 1 and e.residual and e.beta != 1:
            # cuDNN 9.19 on an H200: its engine 0 takes such a graph, and reads the factors, which
            # are on the host, as if they were on the device. One alone it leaves to other engines.
            return "an epilogue has one factor, alpha or beta, not both"
        return ""

    def describe(self, graph: GraphBuilder) -> None:
        s = self.signature
        result, role = self._convolution(graph)
        if not self.epilogue.is_empty:
            result = self._followed_by(graph, result)
        shape = getattr(s, role)
        graph.output(result, role, shape, strides(shape, s.layout), s.dtype)

    def _convolution(self, graph: GraphBuilder) -> tuple[Any, str]:
        """The convolution's node: its result, and which of x, w, y that is."""
        s, mode = self.signature, frontend.compiled().convolution_mode
        settings = {
            "padding": list(s.padding), "stride": list(s.stride), "dilation": list(s.dilation),
            "convolution_mode": mode.CONVOLUTION if s.flip else mode.CROSS_CORRELATION,
            "compute_data_type": graph.type(s.compute),
        }  # fmt: skip
        if s.direction == "fwd":
            x, w = self._operand(graph, "x"), self._operand(graph, "w")
            return graph.add("conv_fprop", image=x, weight=w, **settings), "y"
        dy = self._operand(graph, "y")
        if s.direction == "bwd_data":
            w = self._operand(graph, "w")
            return graph.add("conv_dgrad", loss=dy, filter=w, **settings), "x"
        x = self._operand(graph, "x")
        return graph.add("conv_wgrad", image=x, loss=dy, **settings), "w"

    def _followed_by(self, graph: GraphBuilder, y: Any) -> Any:
        """The epilogue's nodes, in the order of cuDNN's own kernels of convolution and bias."""
        s, e, ndim = self.signature, self.epilogue, len(self.signature.y)

        def virtual(value: Any) -> Any:
            return graph.virtual(value, s.y, strides(s.y, s.layout))

        y = virtual(y)
        if e.alpha != 1:
            y = virtual(graph.add("mul", a=y, b=graph.number("alpha", ndim)))
        if e.residual:
            z = self._tensor(graph, "residual", s.y)
            if e.beta != 1:
                z = virtual(graph.add("mul", a=z, b=graph.number("beta", ndim)))
            y = virtual(graph.add("add", a=y, b=z))
        if e.bias:
            bias = self._tensor(graph, "bias", (1, s.w[0], *(1 for _ in s.y[2:])))
            y = virtual(graph.add("bias", input=y, bias=bias))
        if e.activation:
            slope = {"negative_slope": e.slope} if e.activation == "leaky_relu" else {}
            y = graph.add(ACTIVATIONS[e.activation], input=y, **slope)
        return y

    def _operand(self, graph: GraphBuilder, role: str) -> Any:
        return self._tensor(graph, role, getattr(self.signature, role))

    def _tensor(self, graph: GraphBuilder, role: str, shape: Sequence[int]) -> Any:
        s = self.signature
        return graph.input(role, shape, strides(shape, s.layout), s.dtype)
