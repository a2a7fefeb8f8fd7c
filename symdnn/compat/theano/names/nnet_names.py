"""Names of ``theano.tensor.nnet`` and its parts that symdnn's ``T.nnet`` lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names.class_names import NAMES, stand_in
from symdnn.compat.theano.names.gradient_names import reading
from symdnn.graph.typing import BorderMode
from symdnn.graph.variable import Variable
from symdnn.ops.elementwise.activations import Sigmoid as ScalarSigmoid
from symdnn.ops.elementwise.activations import Softplus as ScalarSoftplus
from symdnn.ops.nn.conv_abstract import get_conv_shape_1axis
from symdnn.ops.nn.conv_builders import conv2d_grad_wrt_inputs
from symdnn.ops.nn.ctc import ctc
from symdnn.tensor.nnet import conv2d as abstract_conv2d
from symdnn.tensor.nnet import (
    crossentropy_softmax_1hot,
    crossentropy_softmax_1hot_with_bias,
    images2neibs,
    neibs2images,
    prepend_scalar_to_each_row,
    sigmoid,
    ultra_fast_sigmoid,
)

__all__ = [
    "AbstractBatchNormInference", "AbstractBatchNormTrain", "AbstractBatchNormTrainGrad",
    "ConvOp", "Images2Neibs", "ScalarSigmoid", "ScalarSoftplus",
    "SparseBlockGemv", "SparseBlockOuter", "abstract_conv2d", "conv2d",
    "conv2d_grad_wrt_inputs", "crossentropy_categorical_1hot", "crossentropy_categorical_1hot_grad",
    "crossentropy_softmax_1hot_with_bias_dx", "crossentropy_softmax_max_and_argmax_1hot",
    "crossentropy_softmax_max_and_argmax_1hot_with_bias", "images2neibs", "logsoftmax_op",
    "neibs2images", "prepend_0_to_each_row", "prepend_1_to_each_row", "scalar_sigmoid",
    "scalar_softplus", "sigmoid_inplace", "softmax_grad", "softmax_graph", "softmax_op",
    "softmax_simplifier", "sparse_block_dot", "sparse_block_gemv", "sparse_block_gemv_inplace",
    "sparse_block_outer", "sparse_block_outer_inplace",
    "ultra_fast_sigmoid_inplace",
]  # fmt: skip

AbstractBatchNormInference = NAMES["AbstractBatchNormInference"]
AbstractBatchNormTrain = NAMES["AbstractBatchNormTrain"]
AbstractBatchNormTrainGrad = NAMES["AbstractBatchNormTrainGrad"]

softmax_op = softmax_graph = NAMES["Softmax"]()
logsoftmax_op = NAMES["LogSoftmax"]()
softmax_grad = NAMES["SoftmaxGrad"]()
crossentropy_categorical_1hot = NAMES["CrossentropyCategorical1Hot"]()
crossentropy_categorical_1hot_grad = NAMES["CrossentropyCategorical1HotGrad"]()
crossentropy_softmax_1hot_with_bias_dx = NAMES["CrossentropySoftmax1HotWithBiasDx"]()
scalar_sigmoid = sigmoid_inplace = sigmoid
scalar_softplus = T.nnet.softplus
ultra_fast_sigmoid_inplace = ultra_fast_sigmoid


def conv2d(
    input: Any, filters: Any, input_shape: Any = None, filter_shape: Any = None,
    border_mode: Any = "valid", subsample: Any = (1, 1), filter_flip: bool = True,
    image_shape: Any = None, filter_dilation: Any = (1, 1), num_groups: int = 1,
    unshared: bool = False, **old: Any,
) -> Variable:  # fmt: skip
    """``T.nnet.conv2d``, and that of ``T.nnet.conv``: ``imshp``, ``kshp`` and words about loops
    are old and change nothing."""
    input_shape = input_shape if input_shape is not None else image_shape
    if input_shape is None and old.get("imshp") is not None:
        shape = old["imshp"]
        input_shape = shape if len(shape) == 4 else None
    _ = [old.pop(w, None) for w in _OLD_WORDS.split()]
    if old:
        raise TypeError(f"conv2d: unexpected arguments {', '.join(old)}")
    return T.nnet.conv2d(
        input, filters, _shape(input_shape), _shape(filter_shape), border_mode, subsample,
        filter_flip, filter_dilation=filter_dilation, num_groups=num_groups, unshared=unshared,
    )  # fmt: skip


_OLD_WORDS = """
    imshp kshp nkern bsize dx dy unroll_batch unroll_kern unroll_patch openmp verbose version
    direction_hint imshp_logical kshp_logical
"""


def _shape(shape: Any) -> Any:
    if shape is None or isinstance(shape, Variable):
        return shape
    return tuple(int(d) if isinstance(d, np.integer) else d for d in shape)


class ConvOp:
    """Theano's oldest convolution: ``ConvOp(imshp, kshp, nkern, bsize, dx, dy, output_mode)``, an
    instance of which applies to images and filters. Words for its C code change nothing."""

    def __init__(
        self, imshp: Any = None, kshp: Any = None, nkern: int | None = None,
        bsize: int | None = None, dx: int = 1, dy: int = 1, output_mode: str = "valid",
        **words: Any,
    ) -> None:  # fmt: skip
        self.subsample, self.output_mode = (dx or 1, dy or 1), output_mode

    @staticmethod
    def has_all_shape(imshp: Any, kshp: Any, nkern: object = 1, bsize: object = 1) -> bool:
        """Whether all of these sizes are known."""
        return None not in (nkern, bsize, *(imshp or [None]), *(kshp or [None]))

    @staticmethod
    def getOutputShape(
        inshp: Any, kshp: Any, stride: Any = (1, 1), mode: BorderMode = "valid"
    ) -> tuple[Any, ...]:
        """The rows and columns of the result; None where they are unknown."""
        sizes = zip(inshp, kshp, stride)
        return tuple(get_conv_shape_1axis(i, k, mode, d) for i, k, d in sizes)

    def __call__(self, inputs: Any, kerns: Any) -> Variable:
        """Apply."""
        return conv2d(inputs, kerns, border_mode=self.output_mode, subsample=self.subsample)


class Images2Neibs:
    """Theano's op of patches: ``Images2Neibs(mode)(ten4, neib_shape, neib_step)``."""

    def __init__(self, mode: str = "valid") -> None:
        self.mode = mode

    def __call__(self, ten4: Any, neib_shape: Any, neib_step: Any = None) -> Variable:
        """Apply."""
        return images2neibs(ten4, neib_shape, neib_step, self.mode)


def prepend_0_to_each_row(mat: Any) -> Variable:
    """``mat`` with a column of zeros before it."""
    return prepend_scalar_to_each_row(np.asarray(0, T.as_tensor_variable(mat).dtype), mat)


def prepend_1_to_each_row(mat: Any) -> Variable:
    """``mat`` with a column of ones before it."""
    return prepend_scalar_to_each_row(np.asarray(1, T.as_tensor_variable(mat).dtype), mat)


def crossentropy_softmax_argmax_1hot_with_bias(x: Any, b: Any, y_idx: Any) -> list[Variable]:
    """``T.nnet.crossentropy_softmax_argmax_1hot_with_bias``; a function of any of its results may
    have all its inputs, as of Theano's op."""
    found = T.nnet.crossentropy_softmax_argmax_1hot_with_bias(x, b, y_idx)
    return list(reading(list(found), [found[0]]))


def crossentropy_softmax_max_and_argmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any, **words: object
) -> list[Variable]:
    """The cross-entropy, the softmax, and the largest probability of each row with its index."""
    loss, rows = crossentropy_softmax_1hot_with_bias(x, b, y_idx)
    largest, index = T.max_and_argmax(rows, axis=-1)
    return [loss, rows, largest, index]


def crossentropy_softmax_max_and_argmax_1hot(x: Any, y_idx: Any, **words: object) -> list[Variable]:
    """As :func:`crossentropy_softmax_max_and_argmax_1hot_with_bias`, without a bias."""
    loss, rows = crossentropy_softmax_1hot(x, y_idx)
    largest, index = T.max_and_argmax(rows, axis=-1)
    return [loss, rows, largest, index]


def softmax_simplifier(numerators: object, denominators: object) -> Any:
    """Theano's rewrite of ``exp(x) / exp(x).sum(1)``, which the compiler has."""
    return numerators, denominators


def _pairs(rows: Any, columns: Any) -> tuple[Variable, Variable]:
    """Indices (batch, rows, 1) and (batch, 1, columns)."""
    i, j = T.as_tensor_variable(rows), T.as_tensor_variable(columns)
    return i.dimshuffle(0, 1, "x"), j.dimshuffle(0, "x", 1)


def sparse_block_gemv(o: Any, W: Any, h: Any, inputIdx: Any, outputIdx: Any) -> Variable:
    """``o[b, j] + sum(dot(h[b, i], W[inputIdx[b, i], outputIdx[b, j]]) for i)``.

    ``o`` is (batch, oWin, oSize), ``W`` (iBlocks, oBlocks, iSize, oSize), ``h`` (batch, iWin,
    iSize), the indices (batch, iWin) and (batch, oWin).
    """
    blocks: Any = T.as_tensor_variable(W)[_pairs(inputIdx, outputIdx)]
    left = T.as_tensor_variable(h).dimshuffle(0, 1, "x", 2, "x")
    products: Variable = (left * blocks).sum(axis=(1, 3))
    return T.as_tensor_variable(o) + products


def sparse_block_outer(o: Any, x: Any, y: Any, xIdx: Any, yIdx: Any, alpha: Any = None) -> Variable:
    """``o`` with ``alpha * outer(x[b, i], y[b, j])`` added at ``o[xIdx[b, i], yIdx[b, j]]``."""
    left = T.as_tensor_variable(x).dimshuffle(0, 1, "x", 2, "x")
    outer = left * T.as_tensor_variable(y).dimshuffle(0, "x", 1, "x", 2)
    scaled = outer if alpha is None else outer * alpha
    return T.inc_subtensor(T.as_tensor_variable(o)[_pairs(xIdx, yIdx)], scaled)


def sparse_block_dot(W: Any, h: Any, inputIdx: Any, b: Any, outputIdx: Any) -> Variable:
    """:func:`sparse_block_gemv` onto the blocks ``b[outputIdx]`` of a bias (oBlocks, oSize).

    Without a batch (``h`` a matrix, the indices vectors) the result has a batch of one.
    """
    given, i, j = (T.as_tensor_variable(v) for v in (h, inputIdx, outputIdx))
    if i.ndim != given.ndim - 1 or j.ndim != i.ndim:
        raise TypeError(f"sparse_block_dot: h {given.type}, indices {i.type} and {j.type}")
    if given.ndim == 2:
        given, i, j = given.dimshuffle("x", 0, 1), i.dimshuffle("x", 0), j.dimshuffle("x", 0)
    return sparse_block_gemv(T.as_tensor_variable(b)[j], W, given, i, j)


def _block_op(name: str, function: object) -> Any:
    return stand_in(name, lambda inplace=False: function, doc=function.__doc__)


SparseBlockGemv = _block_op("SparseBlockGemv", sparse_block_gemv)
SparseBlockOuter = _block_op("SparseBlockOuter", sparse_block_outer)
sparse_block_gemv_inplace, sparse_block_outer_inplace = sparse_block_gemv, sparse_block_outer
GpuSparseBlockGemv, GpuSparseBlockOuter = SparseBlockGemv, SparseBlockOuter
gpu_sparse_block_gemv = gpu_sparse_block_gemv_inplace = sparse_block_gemv
gpu_sparse_block_outer = gpu_sparse_block_outer_inplace = sparse_block_outer


def ctc_present() -> bool:
    """Whether the CTC loss can be computed: always, without warp-ctc."""
    return True


ctc_available = ctc_present


def ConnectionistTemporalClassification(compute_grad: bool = True, openmp: object = None) -> Any:
    """Theano's op of the CTC loss: the function."""
    return ctc


GpuConnectionistTemporalClassification, gpu_ctc = ConnectionistTemporalClassification, ctc
