"""cuDNN's pooling over the last 2 or 3 dimensions of tensors of 4 or 5 dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import as_variable
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.nn.conv_words import static_ints
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool, pool_size
from symdnn.ops.vendor.gpudnn_base import Choices, DnnBase

__all__ = ["POOL_MODES", "GpuDnnPool", "GpuDnnPoolBase", "GpuDnnPoolDesc", "GpuDnnPoolGrad"]

#: cuDNN's modes by Theano's names -> the neutral op's mode. cuDNN has no ``sum``; our kernels do.
POOL_MODES = {
    "max": "max",
    "max_deterministic": "max",
    "average_inc_pad": "average_inc_pad",
    "average_exc_pad": "average_exc_pad",
    "average": "average_inc_pad",
    "sum": "sum",
}


@dataclass(frozen=True)
class GpuDnnPoolDesc:
    """The settings of a pooling, for ``op(img, desc)``. Calling it returns it unchanged."""

    ws: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    mode: str = "max"
    pad: tuple[int, ...] = (0, 0)

    def __call__(self) -> GpuDnnPoolDesc:
        return self

    def get_ndim(self) -> int:
        """The number of pooled dimensions."""
        return len(self.ws)


@dataclass(frozen=True)
class GpuDnnPoolBase(DnnBase):
    """Base of pooling and its gradient. A NaN stays.

    With ``ignore_border=False`` windows that the border cuts off count too, which cuDNN does not
    do: our own kernels run them. With ``layout="NHWC"`` activations are (N, \\*sizes, C).
    """

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    choices: ClassVar[Choices] = {"mode": tuple(POOL_MODES)}
    mode: str = "max"
    ws: tuple[int, ...] = field(default=(), kw_only=True)
    stride: tuple[int, ...] = field(default=(), kw_only=True)
    pad: tuple[int, ...] = field(default=(), kw_only=True)
    layout: str = field(default="NCHW", kw_only=True)
    ignore_border: bool = field(default=True, kw_only=True)

    @cached_property
    def unlowered(self) -> Op:
        return self.as_op(self.neutral_type, mode=POOL_MODES[self.mode])

    def beyond_cudnn(self, shape: Sequence[int]) -> str | None:
        """Why cuDNN has no such pooling of an array of this shape, else None."""
        if self.mode == "sum":
            return "cuDNN has no pooling by sums"
        if self.ignore_border:
            return None
        sizes = shape[1:-1] if self.layout == "NHWC" else shape[2:]
        windows = list(zip(sizes, self.ws, self.stride, self.pad, strict=True))
        whole = all(pool_size(*w, True) == pool_size(*w, False) for w in windows)
        return None if whole else "cuDNN drops the windows that the border cuts off"

    def infer(self, *inputs: TensorType) -> Any:
        x = inputs[0]
        if not isinstance(x, TensorType) or not x.is_float or x.ndim not in (4, 5):
            raise TypeMismatch(self, "a float tensor of 4 or 5 dimensions", x)
        if len(self.ws) != x.ndim - 2:
            raise TypeMismatch(self, f"a window over {x.ndim - 2} dimensions", str(self.ws))
        return super().infer(*inputs)

    def described(self, x: TensorLike, ws: Any, stride: Any, pad: Any) -> Self:
        """This op with these windows over ``x``, of ints known when the graph is built."""
        name, ndim = type(self).__name__, as_variable(x).type.ndim - 2
        given = {"ws": ws, "stride": stride, "pad": pad}
        ints: dict[str, Any] = {k: static_ints(f"{name}: {k}", v, ndim) for k, v in given.items()}
        return replace(self, **ints)


class GpuDnnPool(GpuDnnPoolBase):
    """Pooling of ``img``. As in Theano: ``GpuDnnPool(mode)(img, ws, stride, pad)``.

    (``cudnnPoolingForward``)
    """

    neutral_type: ClassVar[type[Op]] = Pool

    def with_arguments(self, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """``img``; with (ws, stride, pad), or a descriptor, as in Theano."""
        img, *settings = arguments
        match settings:
            case []:
                return self, [img]
            case [GpuDnnPoolDesc() as d]:
                return replace(self, mode=d.mode).with_arguments(img, d.ws, d.stride, d.pad)
        return self.described(img, *settings), [img]


@dataclass(frozen=True)
class GpuDnnPoolGrad(GpuDnnPoolBase):
    """The gradient of pooling, of (x, y, dy) for a maximum, of (dy, \\*sizes of x) for a mean.

    As in Theano: ``GpuDnnPoolGrad(mode)(inp, out, out_grad, ws, stride, pad)``.
    (``cudnnPoolingBackward``)
    """

    static: tuple[int | None, ...] = field(default=(), kw_only=True)

    @property
    def is_max(self) -> bool:
        """Whether it is the gradient of a maximum."""
        return POOL_MODES[self.mode] == "max"

    @property
    def neutral_type(self) -> type[Op]:  # type: ignore[override]
        return MaxPoolGrad if self.is_max else AveragePoolGrad

    def with_arguments(self, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """The neutral op's inputs, or Theano's six arguments."""
        if len(arguments) != 6 or self.ws:
            return self, arguments
        x, y, dy, *settings = arguments
        op = self.described(x, *settings)
        if self.is_max:
            return op, [x, y, dy]
        sizes = [as_dim(d) for d in dims_of(as_variable(x))[2:]]
        return replace(op, static=tuple(map(static_dim, sizes))), [dy, *sizes]
