"""Dense layers, and rows of a table chosen by integers."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.torch_keywords import torch_keywords
from symdnn.ops.array.norms import norm
from symdnn.ops.array.take import bincount
from symdnn.ops.array.view import flatten
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import dot
from symdnn.ops.linalg.einsum import einsum

__all__ = ["Bilinear", "Linear", "LookupTable"]


@torch_keywords(in_features="inputSize", out_features="outputSize")
class Linear(Module):
    """``y = x weight^T + bias``: (..., inputSize) to (..., outputSize).

    ``weight`` is (outputSize, inputSize), ``bias`` (outputSize,), or None with ``bias=False``.
    (Torch7's and PyTorch's Linear.)

    >>> Linear(10, 5)
    nn.Linear(10 -> 5)
    """

    weight: Shared
    bias: Shared | None

    def __init__(
        self, inputSize: int, outputSize: int, bias: bool = True, *,
        weight_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None, dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("Linear: inputSize, outputSize", inputSize, outputSize)
        self.inputSize, self.outputSize = int(inputSize), int(outputSize)
        shape = (self.outputSize, self.inputSize)
        self.parameter("weight", shape, weight_init or init.torch_uniform, dtype)
        self.bias = None
        if bias:
            initial = bias_init or init.uniform(1 / sqrt(self.inputSize))
            self.parameter("bias", (self.outputSize,), initial, dtype)

    def forward(self, x: Variable) -> Variable:
        wanted = f"a float tensor (..., {self.inputSize})"
        tensor_input(self, x, wanted)
        if x.type.ndim == 0 or x.type.shape[-1] not in (None, self.inputSize):
            raise TypeMismatch("Linear", wanted, x.type)
        y = dot(x, self.weight.dimshuffle(1, 0))
        return y if self.bias is None else y + self.bias

    def describe(self) -> str:
        without = "" if self.bias is not None else " without bias"
        return f"({self.inputSize} -> {self.outputSize}){without}"


@torch_keywords(in1_features="inputSize1", in2_features="inputSize2", out_features="outputSize")
class Bilinear(Module):
    """``y[k] = x1 weight[k] x2 + bias[k]`` of a table of two: (..., in1), (..., in2) to (..., out).

    ``weight`` is (outputSize, inputSize1, inputSize2).
    """

    weight: Shared
    bias: Shared | None

    def __init__(
        self, inputSize1: int, inputSize2: int, outputSize: int, bias: bool = True, *,
        weight_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] | None = None, dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("Bilinear: sizes", inputSize1, inputSize2, outputSize)
        self.inputSize1, self.inputSize2 = int(inputSize1), int(inputSize2)
        self.outputSize = int(outputSize)
        shape = (self.outputSize, self.inputSize1, self.inputSize2)
        around = init.uniform(1 / sqrt(inputSize1))
        self.parameter("weight", shape, weight_init or around, dtype)
        self.bias = None
        if bias:
            self.parameter("bias", shape[:1], bias_init or around, dtype)

    def forward(self, *tables: Any) -> Variable:
        given = tables[0] if len(tables) == 1 else tables
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise TypeMismatch("Bilinear", "a table of two arrays", given)
        a, b = given
        for v in (a, b):
            tensor_input(self, v, "a table of two float arrays (..., in1) and (..., in2)")
        if a.type.ndim == b.type.ndim == 2:
            y = self._of_matrices(a, b)
        else:
            y = einsum("...i,kij,...j->...k", a, self.weight, b)
        made: Variable = y if self.bias is None else y + self.bias
        return made

    def _of_matrices(self, a: Variable, b: Variable) -> Variable:
        sizes: tuple[Any, ...] = self.weight.type.shape
        out, first, second = sizes
        left = dot(a, self.weight.dimshuffle(1, 0, 2).reshape((first, out * second)))
        left = left.reshape((a.shape[0], out, second))
        found: Variable = (left * b.dimshuffle(0, "x", 1)).sum(axis=2)
        return found

    def describe(self) -> str:
        out, first, second = self.weight.type.shape
        return f"({first}x{second} -> {out})"


@torch_keywords(num_embeddings="nIndex", embedding_dim="nOutput", padding_idx="paddingValue")
class LookupTable(Module):
    """Rows of ``weight`` (nIndex, nOutput) for integers: (...) to (..., nOutput).

    Indices count from 0 (Torch7: from 1) and must be smaller than nIndex, which a call checks. The
    row ``paddingValue``, if any, starts as zeros and gets no gradient.

    Rows whose ``norm_type``-norm is above ``max_norm`` are taken at that norm; the table itself is
    changed by its optimiser alone (PyTorch shortens its rows in place). ``scale_grad_by_freq``
    divides a row's gradient by how often the index is in the batch; ``sparse`` means nothing here.
    (PyTorch's Embedding.)

    >>> LookupTable(1000, 64)
    nn.LookupTable(1000 -> 64)
    """

    weight: Shared
    _shown = "{0.nIndex} -> {0.nOutput}"

    def __init__(
        self, nIndex: int, nOutput: int, paddingValue: int | None = None, *,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, weight_init: Callable[..., Any] | None = None,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("LookupTable: nIndex, nOutput", nIndex, nOutput)
        if max_norm is not None and not max_norm > 0:
            raise InputError(f"LookupTable: max_norm={max_norm!r}; wanted more than 0")
        self.max_norm, self.norm_type = max_norm, float(norm_type)
        self.scale_grad_by_freq = bool(scale_grad_by_freq)
        if paddingValue is not None and not -nIndex <= paddingValue < nIndex:
            raise InputError(f"LookupTable: paddingValue={paddingValue} is no row of {nIndex}")
        self.nIndex, self.nOutput = int(nIndex), int(nOutput)
        self.paddingValue = None if paddingValue is None else int(paddingValue) % self.nIndex
        shape = (self.nIndex, self.nOutput)
        self.parameter("weight", shape, self._initial(weight_init or init.normal(1.0)), dtype)

    def _initial(self, initial: Callable[..., Any]) -> Callable[..., Any]:
        def draw(shape: Any, rng: Any) -> Array | None:
            value = np.array(initial(shape, rng))
            if self.paddingValue is not None:
                value[self.paddingValue] = 0
            return value

        return draw

    def forward(self, index: Variable) -> Variable:
        wanted = f"an integer tensor of indices smaller than {self.nIndex}"
        tensor_input(self, index, wanted, any_dtype=True)
        if not index.type.is_integer:
            raise TypeMismatch("LookupTable", wanted, index.type, "Cast it: x.astype('int64')")
        rows: Variable = self.weight[index]
        if self.max_norm is not None:
            rows = self._shortened(rows)
        if self.scale_grad_by_freq:
            flat = flatten(index, 1)
            often = cast(bincount(flat, minlength=self.nIndex)[index], rows.type.dtype)
            part = rows / often.dimshuffle(*range(index.type.ndim), "x")
            rows = part + disconnected_grad(rows - part)
        if self.paddingValue is None:
            return rows
        padding = eq(index, self.paddingValue).dimshuffle(*range(index.type.ndim), "x")
        return switch(padding, disconnected_grad(rows), rows)

    def _shortened(self, rows: Variable) -> Variable:
        """Rows of at most ``max_norm``; the gradient is that of the shorter row, as PyTorch's."""
        length = norm(rows, self.norm_type, axis=-1, keepdims=True)
        most, eps = like(self.max_norm or 0.0, rows), like(1e-7, rows)
        shorter = switch(length > most, rows * (most / (length + eps)), rows)
        return rows + disconnected_grad(shorter - rows)

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None,
        **options: Any,
    ) -> LookupTable:  # fmt: skip
        """A table with these rows, an array; ``freeze`` saves it and does not train it."""
        values = embeddings.get_value() if isinstance(embeddings, Shared) else embeddings
        array = np.asarray(values)
        if array.ndim != 2:
            raise InputError(f"from_pretrained: wanted a matrix, got the shape {array.shape}")
        words, width = array.shape
        made = cls(words, width, padding_idx, **options)
        made.weight.set_value(array.astype(made.weight.type.dtype))
        if freeze:
            made.register_buffer("weight", made.weight)
        return made
