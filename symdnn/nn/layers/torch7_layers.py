"""Modules that Torch7 has and PyTorch has not: small learned layers, points and joins.

Dimensions count from 0 (Torch7: from 1).
"""

from __future__ import annotations

import math
from typing import Any

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.dims import Dim, dim_max, product
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Shared, Variable, as_variable, constant
from symdnn.nn import init
from symdnn.nn.layers.containers import _Branches
from symdnn.nn.layers.conv import VolumetricConvolution
from symdnn.nn.layers.linear import Linear
from symdnn.nn.layers.pooling import SpatialMaxPooling
from symdnn.nn.layers.shaping import Identity, _numbers
from symdnn.nn.layers.torch_layers import GLU, ReplicationPad3d
from symdnn.nn.modules.arguments import as_batch, positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.pad import pad
from symdnn.ops.array.take import to_one_hot
from symdnn.ops.array.view import broadcast_to
from symdnn.ops.core.gradient_control import grad_scale
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.activations import relu
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, sqr, sqrt
from symdnn.ops.linalg.dot import dot
from symdnn.ops.nn.pool import pool_2d
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Add", "Bottle", "CAdd", "CMul", "CReLU", "Collapse", "Constant", "Copy", "Cosine",
    "DepthConcat", "Euclidean", "GatedLinearUnit", "GradientReversal", "Maxout", "Mul",
    "Normalize", "OneHot", "Padding", "SpatialDilatedMaxPooling", "SpatialSubSampling",
    "TemporalSubSampling", "VolumetricDilatedConvolution", "VolumetricReplicationPadding",
    "WeightedEuclidean", "WhiteNoise",
]  # fmt: skip


def _rows(module: Module, x: Any, size: int) -> tuple[Variable, Any]:
    """(batch, size), or one example, and what restores the latter."""
    batch, restore = as_batch(module, x, 2, f"(batch, {size}) or ({size},)")
    if batch.type.shape[1] not in (None, size):
        raise TypeMismatch(type(module).__name__, f"(batch, {size}) or ({size},)", x.type)
    return batch, restore


# -- elements and their parameters -----------------------------------------------------------------


class CAdd(Module):
    """``x + bias``, a learned tensor of ``size``; the batch and axes of size 1 share its elements.

    >>> CAdd(3, 1, 1)
    nn.CAdd(3x1x1)
    """

    name = "bias"

    def __init__(self, *size: Any, dtype: str | None = None) -> None:
        self.size = _numbers(type(self).__name__, size)
        if -1 in self.size:
            raise InputError(f"{type(self).__name__}: wanted sizes of 1 or more, got {self.size}")
        self.parameter(self.name, self.size, init.uniform(math.prod(self.size) ** -0.5), dtype)

    def forward(self, x: Variable) -> Variable:
        return x + self._fitting(x)

    def _fitting(self, x: Variable) -> Variable:
        known = zip(reversed(x.type.shape), reversed(self.size), strict=False)
        wanted = f"a float tensor (..., {', '.join(map(str, self.size))})"
        tensor_input(self, x, wanted)
        if x.type.ndim < len(self.size) or any(n != 1 and m not in (None, n) for m, n in known):
            raise TypeMismatch(type(self).__name__, wanted, x.type)
        found: Variable = getattr(self, self.name)
        return found

    def describe(self) -> str:
        return f"({'x'.join(map(str, self.size))})"


class CMul(CAdd):
    """``x weight``, element by element: a learned tensor as in :class:`CAdd`."""

    name = "weight"

    def forward(self, x: Variable) -> Variable:
        return x * self._fitting(x)


class Add(CAdd):
    """``x + bias``: (batch, inputSize), a bias for each feature, or with ``scalar`` one for all."""

    def __init__(self, inputSize: int, scalar: bool = False, *, dtype: str | None = None) -> None:
        super().__init__(1 if scalar else inputSize, dtype=dtype)


class Mul(CMul):
    """``x weight``, one learned number."""

    def __init__(self, *, dtype: str | None = None) -> None:
        super().__init__(1, dtype=dtype)

    def describe(self) -> str:
        return ""


class Normalize(Module):
    """Each row divided by its p-norm, ``(sum of |x|^p + eps)^(1/p)``: (batch, size), or one row."""

    _shown = "{0.p:g}"

    def __init__(self, p: float, eps: float = 1e-10) -> None:
        if not p > 0:
            raise InputError(f"Normalize: p={p!r}; wanted more than 0")
        self.p, self.eps = float(p), float(eps)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor (batch, size) or (size,)", 1, 2)
        eps = constant(self.eps, dtype=x.type.dtype)
        if math.isinf(self.p):
            return x / (absolute(x).max(axis=-1, keepdims=True) + eps)
        powers = sqr(x) if self.p == 2 else absolute(x) ** self.p
        total = powers.sum(axis=-1, keepdims=True) + eps
        return x / (sqrt(total) if self.p == 2 else total ** (1 / self.p))


class CReLU(Module):
    """``relu(x)`` and ``relu(-x)`` joined: twice as many features (Shang et al. 2016).

    ``nInputDims`` is the number of dimensions without a batch, the first of them the features.
    """

    def __init__(self, nInputDims: int, inplace: bool = False) -> None:
        positive("CReLU: nInputDims", nInputDims)
        self.nInputDims, self.inplace = int(nInputDims), bool(inplace)

    def forward(self, x: Variable) -> Variable:
        n = self.nInputDims
        tensor_input(self, x, f"a float tensor of {n} dimensions, or of a batch", n, n + 1)
        return concatenate([relu(x), relu(-x)], axis=x.type.ndim - n)


class GatedLinearUnit(GLU):
    """Torch7's name of :class:`GLU`."""


class GradientReversal(Module):
    """The input; its gradient is multiplied by ``-lambda_`` (Ganin and Lempitsky 2015)."""

    def __init__(self, lambda_: float = 1.0) -> None:
        self.setLambda(lambda_)

    def setLambda(self, lambda_: float) -> GradientReversal:
        """The number for the calls that follow; returns the module."""
        self.lambda_ = float(lambda_)
        return self

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor")
        return grad_scale(x, -self.lambda_)


class WhiteNoise(Module):
    """In training the input plus normal numbers of this mean and deviation; else plus the mean.

    ``seed`` as of :class:`Dropout`.
    """

    def __init__(self, mean: float = 0.0, std: float = 0.1, *, seed: int | None = None) -> None:
        if std < 0:
            raise InputError(f"WhiteNoise: std={std!r}; wanted 0 or more")
        self.mean, self.std = float(mean), float(std)
        self.seed = int(init.generator().integers(2**62)) if seed is None else int(seed)
        self.calls = 0

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor")
        if not self.training:
            return x + constant(self.mean, dtype=x.type.dtype)
        stream = RandomStream((self.seed, self.calls))
        self.calls += 1
        return x + stream.normal(dims_of(x), self.mean, self.std, dtype=x.type.dtype)


class Copy(Identity):
    """The input: functions move values. With types, such as "torch.FloatTensor", as in Torch7."""

    def __init__(self, intype: str | None = None, outtype: str | None = None) -> None:
        self.intype, self.outtype = intype, outtype


class Constant(Module):
    """``value`` whatever the input is; where that has more than ``nInputDim`` dimensions, one for
    each example."""

    def __init__(self, value: Any, nInputDim: int | None = None) -> None:
        self.value, self.nInputDim = as_variable(value), nInputDim

    def forward(self, x: Variable) -> Variable:
        if self.nInputDim is None or x.type.ndim <= self.nInputDim:
            return self.value
        return broadcast_to(self.value, (dims_of(x)[0], *dims_of(self.value)))


class OneHot(Module):
    """Labels (from 0) as rows of ``outputSize`` numbers, of which one is 1."""

    _shown = "{0.outputSize}"

    def __init__(self, outputSize: int) -> None:
        positive("OneHot: outputSize", outputSize)
        self.outputSize = int(outputSize)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "integer labels", any_dtype=True)
        flat = cast(x, "int64").flatten()
        made = to_one_hot(flat, self.outputSize, "floatX")
        return made.reshape((*dims_of(x), self.outputSize))


class Collapse(Module):
    """The last ``nInputDim`` dimensions as one; those in front of them stay."""

    _shown = "{0.nInputDim}"

    def __init__(self, nInputDim: int) -> None:
        positive("Collapse: nInputDim", nInputDim)
        self.nInputDim = int(nInputDim)

    def forward(self, x: Variable) -> Variable:
        wanted = f"a tensor of {self.nInputDim} dimensions or more"
        tensor_input(self, x, wanted, any_dtype=True)
        if x.type.ndim < self.nInputDim:
            raise TypeMismatch("Collapse", wanted, x.type)
        dims = dims_of(x)
        lead = len(dims) - self.nInputDim
        return x.reshape((*dims[:lead], product(dims[lead:])))


class Maxout(Linear):
    """The largest of ``maxoutNumber`` linear functions for each output (Goodfellow et al. 2013).

    ``weight`` is (maxoutNumber * outputSize, inputSize): the functions one after the other.
    """

    def __init__(
        self, inputSize: int, outputSize: int, maxoutNumber: int, *, dtype: str | None = None
    ) -> None:
        positive("Maxout: inputSize, outputSize, maxoutNumber", inputSize, outputSize, maxoutNumber)
        super().__init__(inputSize, outputSize * maxoutNumber, dtype=dtype)
        self.maxoutNumber = int(maxoutNumber)

    def forward(self, x: Variable) -> Variable:
        y = super().forward(x)
        size = self.outputSize // self.maxoutNumber
        return y.reshape((*dims_of(y)[:-1], self.maxoutNumber, size)).max(axis=-2)

    def describe(self) -> str:
        return f"({self.inputSize} -> {self.outputSize // self.maxoutNumber}, {self.maxoutNumber})"


class Padding(Module):
    """``pad`` elements of ``value`` behind the axis ``dim``; a negative number: before it.

    ``nInputDim`` is the number of dimensions without a batch: an input with one more is padded
    along ``dim + 1``.
    """

    _shown = "{0.dim}, {0.pad}"

    def __init__(
        self, dim: int, pad: int, nInputDim: int | None = None, value: float = 0.0
    ) -> None:
        self.dim, self.pad, self.nInputDim = int(dim), int(pad), nInputDim
        self.value = float(value)

    def forward(self, x: Variable) -> Variable:
        shifted = self.nInputDim is not None and x.type.ndim > self.nInputDim
        axis = self.dim + shifted
        wanted = f"a tensor with an axis {axis}"
        tensor_input(self, x, wanted, any_dtype=True)
        if not 0 <= axis < x.type.ndim:
            raise TypeMismatch("Padding", wanted, x.type)
        width = (max(0, -self.pad), max(0, self.pad))
        widths = [width if a == axis else (0, 0) for a in range(x.type.ndim)]
        return pad(x, widths, constant_values=self.value)


# -- distances to learned points -------------------------------------------------------------------


class Euclidean(Module):
    """The distances of x to ``outputSize`` learned points, the columns of ``weight``."""

    weight: Shared
    _shown = "{0.inputSize} -> {0.outputSize}"

    def __init__(self, inputSize: int, outputSize: int, *, dtype: str | None = None) -> None:
        positive(f"{type(self).__name__}: inputSize, outputSize", inputSize, outputSize)
        self.inputSize, self.outputSize = int(inputSize), int(outputSize)
        shape = (self.inputSize, self.outputSize)
        self.parameter("weight", shape, init.uniform(self.inputSize**-0.5), dtype)

    def forward(self, x: Variable) -> Variable:
        batch, restore = _rows(self, x, self.inputSize)
        apart = self._scaled(batch.dimshuffle(0, 1, "x") - self.weight)
        found: Variable = restore(sqrt(sqr(apart).sum(axis=1)))
        return found

    def _scaled(self, apart: Variable) -> Variable:
        return apart


class WeightedEuclidean(Euclidean):
    """:class:`Euclidean` with differences multiplied by the learned ``diagCov``, of that shape."""

    diagCov: Shared

    def __init__(self, inputSize: int, outputSize: int, *, dtype: str | None = None) -> None:
        super().__init__(inputSize, outputSize, dtype=dtype)
        self.parameter("diagCov", (self.inputSize, self.outputSize), init.ones, dtype)

    def _scaled(self, apart: Variable) -> Variable:
        return apart * self.diagCov


class Cosine(Module):
    """The cosines between x and ``outputSize`` learned vectors, the rows of ``weight``."""

    weight: Shared
    _shown = "{0.inputSize} -> {0.outputSize}"

    def __init__(self, inputSize: int, outputSize: int, *, dtype: str | None = None) -> None:
        positive("Cosine: inputSize, outputSize", inputSize, outputSize)
        self.inputSize, self.outputSize = int(inputSize), int(outputSize)
        shape = (self.outputSize, self.inputSize)
        self.parameter("weight", shape, init.torch_uniform, dtype)

    def forward(self, x: Variable) -> Variable:
        batch, restore = _rows(self, x, self.inputSize)
        lengths = sqrt(sqr(batch).sum(axis=1, keepdims=True)) * sqrt(sqr(self.weight).sum(axis=1))
        least = constant(1e-12, dtype=batch.type.dtype)
        found: Variable = restore(dot(batch, self.weight.T) / (lengths + least))
        return found


# -- containers ------------------------------------------------------------------------------------


class Bottle(Module):
    """A module of inputs of ``nInputDim`` dimensions, here of ones with more.

    The axes in front are one for the module, and are theirs again in its output of ``nOutputDim``
    dimensions (``nInputDim``).

    >>> x = as_variable([[[0.5, 1, 1], [2, 2, 2]]])
    >>> Bottle(Cosine(3, 4), 2)(x.astype("float32")).eval().shape
    (1, 2, 4)
    """

    def __init__(self, module: Module, nInputDim: int = 2, nOutputDim: int | None = None) -> None:
        positive("Bottle: nInputDim", nInputDim)
        self.module, self.nInputDim = module, int(nInputDim)
        self.nOutputDim = self.nInputDim if nOutputDim is None else int(nOutputDim)

    def forward(self, x: Variable) -> Any:
        more = x.type.ndim - self.nInputDim
        if more <= 0:
            return self.module(x)
        dims = dims_of(x)
        y = self.module(x.reshape((product(dims[: more + 1]), *dims[more + 1 :])))
        return y.reshape((*dims[: more + 1], *dims_of(y)[1 : self.nOutputDim]))


class DepthConcat(_Branches):
    """Outputs of all modules, of the one input, joined along ``dim``; smaller ones have zeros
    around them, so that all have one size along the other axes."""

    def __init__(self, dim: int, *modules: Module) -> None:
        super().__init__(*modules)
        self.dim = int(dim)

    def forward(self, x: Any) -> Variable:
        if not self.modules:
            raise InputError("DepthConcat: there are no modules; add one")
        found = [module(x) for module in self.modules]
        sizes: list[Dim] = list(dims_of(found[0]))
        for y in found[1:]:
            sizes = [dim_max(a, b) for a, b in zip(sizes, dims_of(y), strict=True)]
        return concatenate([self._widened(y, sizes) for y in found], axis=self.dim)

    def _widened(self, y: Variable, sizes: list[Dim]) -> Variable:
        axis = self.dim % y.type.ndim
        missing = [n - m for n, m in zip(sizes, dims_of(y), strict=True)]
        widths = [(m // 2, m - m // 2) if a != axis else (0, 0) for a, m in enumerate(missing)]
        return pad(y, widths)


# -- images and volumes ----------------------------------------------------------------------------


class SpatialSubSampling(Module):
    """The sum of each window of (N, nInputPlane, H, W), times ``weight``, plus ``bias``, both
    learned for each plane (LeCun et al. 1998)."""

    weight: Shared
    bias: Shared

    def __init__(
        self, nInputPlane: int, kW: int, kH: int, dW: int = 1, dH: int = 1, *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("SpatialSubSampling: nInputPlane, kW, kH, dW, dH", nInputPlane, kW, kH, dW, dH)
        self.nInputPlane, self.kernel, self.stride = int(nInputPlane), (kH, kW), (dH, dW)
        for name in ("weight", "bias"):
            self.parameter(name, (self.nInputPlane,), init.uniform((kW * kH) ** -0.5), dtype)

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, f"(batch, {self.nInputPlane}, height, width)")
        if batch.type.shape[1] not in (None, self.nInputPlane):
            raise TypeMismatch("SpatialSubSampling", f"{self.nInputPlane} planes", x.type)
        total = pool_2d(batch, self.kernel, True, self.stride, mode="sum")
        weight, bias = (v.dimshuffle("x", 0, "x", "x") for v in (self.weight, self.bias))
        return restore(total * weight + bias)

    def describe(self) -> str:
        return f"({self.nInputPlane}, {self.kernel[1]}x{self.kernel[0]})"


class TemporalSubSampling(Module):
    """:class:`SpatialSubSampling` of (N, frames, inputFrameSize), by windows of kW frames."""

    weight: Shared
    bias: Shared
    _shown = "{0.inputFrameSize}, {0.kW}"

    def __init__(
        self, inputFrameSize: int, kW: int, dW: int = 1, *, dtype: str | None = None
    ) -> None:
        positive("TemporalSubSampling: inputFrameSize, kW, dW", inputFrameSize, kW, dW)
        self.inputFrameSize, self.kW, self.dW = int(inputFrameSize), int(kW), int(dW)
        for name in ("weight", "bias"):
            self.parameter(name, (self.inputFrameSize,), init.uniform(self.kW**-0.5), dtype)

    def forward(self, x: Variable) -> Variable:
        wanted = f"(batch, frames, {self.inputFrameSize})"
        batch, restore = as_batch(self, x, 3, wanted)
        if batch.type.shape[2] not in (None, self.inputFrameSize):
            raise TypeMismatch("TemporalSubSampling", wanted, x.type)
        total = pool_2d(batch, (self.kW, 1), True, (self.dW, 1), mode="sum")
        return restore(total * self.weight + self.bias)


class SpatialDilatedMaxPooling(SpatialMaxPooling):
    """:class:`SpatialMaxPooling` with dilationW, dilationH (1) behind padH, as in Torch7."""

    def __init__(
        self, kW: int | None = None, kH: int | None = None, dW: int | None = None,
        dH: int | None = None, padW: int | None = None, padH: int | None = None,
        dilationW: int = 1, dilationH: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(kW, kH, dW, dH, padW, padH, **options)
        steps: PerAxis = (dilationW if dilationH is None else dilationH, dilationW)
        self.options(dilation=steps)


class VolumetricDilatedConvolution(VolumetricConvolution):
    """:class:`VolumetricConvolution` with dilationT, dilationW, dilationH (1) behind padH."""

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kT: int | None = None, kW: int | None = None,
        kH: int | None = None, dT: int | None = None, dW: int | None = None, dH: int | None = None,
        padT: int | None = None, padW: int | None = None, padH: int | None = None,
        dilationT: int = 1, dilationW: int = 1, dilationH: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        options.setdefault("dilation", (dilationT, dilationH, dilationW))
        super().__init__(
            nInputPlane, nOutputPlane, kT, kW, kH, dT, dW, dH, padT, padW, padH, **options
        )


class VolumetricReplicationPadding(ReplicationPad3d):
    """Volumes continued by their border: left, right, top, bottom, front, back."""

    def __init__(
        self, pleft: int, pright: int, ptop: int, pbottom: int, pfront: int, pback: int
    ) -> None:
        super().__init__((pleft, pright, ptop, pbottom, pfront, pback))
