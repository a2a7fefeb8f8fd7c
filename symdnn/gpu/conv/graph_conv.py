"""Convolution as a cuDNN graph: its description, and limits for its plans.

It covers all three directions, 2-D and 3-D, NCHW and NHWC, and forward with an epilogue, which
cuDNN computes in the same kernel before it rounds and writes the result. Tensors are described by
logical shapes (N, C, sizes) and by strides, which define the layout; groups follow from the
channels. A 3-D convolution has five dimensions, every other four.

For float32 without TF32, engines with tensor cores are excluded, so that float32 means float32.
With TF32, engines that round to 16 bits are excluded. Engines with accumulators narrower than the
signature's ``compute`` are always excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.gpu.binding import frontend
from symdnn.gpu.conv.signature import ACTIVATIONS, ConvSignature, Epilogue
from symdnn.gpu.cudnn.graph import GraphBuilder, GraphForm
from symdnn.gpu.cudnn.graph_plan import Limits
from symdnn.ops.core.dtype import wide_float

#: Dtypes of cuDNN's convolutions.
DTYPES = ("float16", "bfloat16", "float32", "float64")


def strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor (N, C, sizes) in the layout NCHW or NHWC.

    >>> strides((2, 3, 4, 5), "NHWC")
    (60, 1, 15, 3)
    """
    if layout == "NCHW":
        return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    _, c, *sizes = shape
    inner = (c * prod(sizes[i + 1 :]) for i in range(len(sizes)))
    return (c * prod(sizes), 1, *inner)


def conv_graph(signature: ConvSignature) -> ConvGraph:
    """The graph of a convolution, without fields that plans do not depend on."""
    return ConvGraph(
        replace(signature, wanted="", on_unsupported="", workspace_limit=0, named=False)
    )


@dataclass(frozen=True)
class ConvGraph(GraphForm):
    """A convolution with an epilogue. Made by :func:`conv_graph`."""

    name = "symdnn_conv"

    signature: ConvSignature

    @property
    def epilogue(self) -> Epilogue:
        """What follows the convolution in the same kernel."""
        return self.signature.epilogue

    @property
    def roles(self) -> tuple[str, ...]:
        return ("x", "w", "y", *self.epilogue.roles)

    @property
    def numbers(self) -> dict[str, float]:
        e = self.epilogue
        wanted = {"alpha": e.alpha, "beta": e.beta if e.residual else 1.0}
        return {name: value for name, value in wanted.items() if value != 1}

    @property
    def intermediate_dtype(self) -> str:
        return wide_float(self.signature.dtype)

    @property
    def limits(self) -> Limits:
        """Limits by cuDNN's numerical notes and determinism.

        Not by workspace: :class:`~symdnn.gpu.conv.search.Search` says which plans need too much.
        """
        s, unwanted = self.signature, []
        if s.dtype == "float32":
            unwanted.append("DOWN_CONVERT_INPUTS")
            if not s.allow_tf32:
                unwanted.append("TENSOR_CORE")
        if s.compute != "float16":
            unwanted.append("REDUCED_PRECISION_REDUCTION")
        return Limits(tuple(unwanted), deterministic=s.deterministic)

    def refusal(self) -> str:
        s, e = self.signature, self.epilogue
        if s.dtype not in DTYPES or s.compute not in DTYPES:
            return f"no dtype of cuDNN: {s.dtype}, summed in {s.compute}"
        if any(prod(shape) == 0 for shape in (s.x, s.w, s.y)):
            return "it is empty"
        if not e.is_empty and s.direction != "fwd":
            return f"an epilogue follows a forward convolution, not {s.direction}"
        if e.alpha != 1 and e.residual and e.beta != 1:
            # cuDNN 9.19 on an H200: engine 0 accepts such a graph, but reads the factors, which are
            # on the host, as device memory. For a single factor other engines are used.
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
        """Add the convolution. Returns its result, and the role (x, w or y) of that."""
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
        """Add the epilogue, with operations in the order that cuDNN's precompiled kernels have."""
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
            settings = {"leaky_relu": {"negative_slope": e.slope}, "relu6": {"upper_clip": 6.0}}
            y = graph.add(ACTIVATIONS[e.activation], input=y, **settings.get(e.activation, {}))
        return y

    def _operand(self, graph: GraphBuilder, role: str) -> Any:
        return self._tensor(graph, role, getattr(self.signature, role))

    def _tensor(self, graph: GraphBuilder, role: str, shape: Sequence[int]) -> Any:
        s = self.signature
        return graph.input(role, shape, strides(shape, s.layout), s.dtype)
