"""Classes of Theano's ops by name, for ``isinstance(node.op, T.elemwise.Sum)`` and their like.

Each is a stand-in: instances are the ops of symdnn that compute the same. Calling it with Theano's
arguments makes a function of variables, as far as one is listed here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from symdnn import tensor as T
from symdnn.graph.op import Op
from symdnn.graph.variable import as_variable

__all__ = ["NAMES", "OpName"]


class OpName(type):
    """The class of the stand-ins: ``isinstance`` asks the ops of symdnn that are listed."""

    targets: tuple[str, ...]

    def _classes(cls) -> tuple[type, ...]:
        found = cls.__dict__.get("_found")
        if found is None:
            found = tuple(map(_class, cls.targets))
            cls._found = found
        return found

    def __instancecheck__(cls, op: object) -> bool:
        return isinstance(op, cls._classes()) or type.__instancecheck__(cls, op)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls._classes()) or type.__subclasscheck__(cls, kind)

    def __call__(cls, *args: Any, **words: Any) -> Any:
        maker = cls.__dict__.get("maker") or _MAKERS.get(cls.__name__)
        if maker is None:
            raise TypeError(
                f"{cls.__name__} is here to name ops of graphs; apply the function of T instead "
                f"({_FUNCTIONS.get(cls.__name__, 'see docs/theano.md')})"
            )
        return maker(*args, **words)


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"symdnn.ops.{module}"), name)  # type: ignore[no-any-return]


_TABLE = """
ARange              array.create.ARange
AdvancedIncSubtensor        array.advanced_index.AdvancedIncSubtensor
AdvancedIncSubtensor1       array.advanced_index.AdvancedIncSubtensor
AdvancedSubtensor           array.advanced_index.AdvancedSubtensor
AdvancedSubtensor1          array.advanced_index.AdvancedSubtensor
AdvancedBooleanSubtensor    array.advanced_index.AdvancedSubtensor
AdvancedBooleanIncSubtensor array.advanced_index.AdvancedIncSubtensor
BaseAdvancedSubtensor       array.advanced_index.AdvancedSubtensor
BaseAdvancedIncSubtensor    array.advanced_index.AdvancedIncSubtensor
All                 array.reduce.AllTrue
Any                 array.reduce.AnyTrue
Alloc               core.shape.Alloc
AllocEmpty          core.shape.Alloc
AllocDiag           array.create.AllocDiag
Argmax              array.argreduce.ArgMax
ArgSortOp           array.sort.ArgSort
BatchedDot          linalg.products.BatchedDot
CAReduce            array.reduce.Reduce
CAReduceDtype       array.reduce.Reduce
Composite           lowered.fused.Fused
CumOp               array.cumulative.CumSum array.cumulative.CumProd
CumsumOp            array.cumulative.CumSum
CumprodOp           array.cumulative.CumProd
DimShuffle          core.shape.DimShuffle
Dot                 linalg.products.Dot
Dot22               linalg.products.Dot
Elemwise            elemwise.Elemwise
ExtractDiag         array.create.Diagonal
Flatten             core.shape.Reshape
Gemm                linalg.products.Dot
Gemv                linalg.products.Dot
Ger                 linalg.products.Dot
IncSubtensor        array.index.IncSubtensor
Join                array.join.Join
LogSoftmax          nn.softmax.LogSoftmax
MakeVector          core.make_vector.MakeVector
MaxAndArgmax        array.reduce.Max array.argreduce.ArgMax
Nonzero             array.getitem.Nonzero
Pool                nn.pool.Pool
Prod                array.reduce.Prod
Rebroadcast         core.shape.SpecifyType
RepeatOp            array.join.RepeatIndex
Reshape             core.shape.Reshape
Shape               core.shape.ShapeVector
Shape_i             core.shape.ShapeI
Softmax             nn.softmax.Softmax
SoftmaxGrad         nn.softmax.SoftmaxGrad
SoftmaxWithBias     nn.softmax.Softmax
SortOp              array.sort.Sort
SpecifyShape        array.view.SpecifyShape
Split               array.join.Split
Subtensor           array.index.Subtensor
Sum                 array.reduce.Sum
TopKOp              array.sort.TopK
CrossentropyCategorical1Hot             nn.crossentropy.CrossentropyCategorical1Hot
CrossentropyCategorical1HotGrad         nn.crossentropy.CrossentropyCategorical1HotGrad
CrossentropySoftmaxArgmax1HotWithBias   nn.crossentropy.SoftmaxCrossentropy
CrossentropySoftmax1HotWithBiasDx       nn.crossentropy.SoftmaxCrossentropyGrad
BaseAbstractConv    nn.conv.Conv nn.conv.ConvGradInput nn.conv.ConvGradWeight
CorrMM              nn.conv.Conv
CorrMM_gradWeights  nn.conv.ConvGradWeight
CorrMM_gradInputs   nn.conv.ConvGradInput
Corr3dMM            nn.conv.Conv
ConvOp              nn.conv.Conv
AbstractBatchNormTrain      nn.batchnorm.BatchNormTrain
AbstractBatchNormInference  nn.batchnorm.BatchNormInference
AbstractBatchNormTrainGrad  nn.batchnorm.BatchNormGrad
"""

_FUNCTIONS = {
    "Subtensor": "x[...]", "AdvancedSubtensor": "x[...]", "AdvancedSubtensor1": "x[index]",
    "IncSubtensor": "T.inc_subtensor", "AdvancedIncSubtensor1": "T.inc_subtensor",
    "Softmax": "T.nnet.softmax", "CAReduce": "T.sum, T.max, ...", "ARange": "T.arange",
}  # fmt: skip


def _elemwise(scalar_op: Any, *args: Any, **words: Any) -> Any:
    from symdnn.compat.theano.names.scalar_names import elementwise

    return elementwise(scalar_op)


def _dim_shuffle(
    input_broadcastable: Any, new_order: Any, inplace: bool = True
) -> Callable[..., Any]:
    return lambda x: as_variable(x).dimshuffle(*new_order)


def _reduced(name: str) -> Callable[..., Any]:
    def make(axis: Any = None, dtype: Any = None, acc_dtype: Any = None, **words: Any) -> Any:
        function = getattr(T, name)
        given = {} if name in ("all", "any") else {"dtype": dtype}
        return lambda x: function(x, axis=axis, **given)

    return make


#: What calling a stand-in with Theano's arguments makes.
_MAKERS: dict[str, Callable[..., Any]] = {
    "Elemwise": _elemwise,
    "DimShuffle": _dim_shuffle,
    "Sum": _reduced("sum"), "Prod": _reduced("prod"), "All": _reduced("all"),
    "Any": _reduced("any"),
    "Join": lambda view=-1: T.join,
    "Reshape": lambda ndim, name=None: lambda x, shape: T.reshape(x, shape, ndim=ndim),
    "Flatten": lambda outdim=1: lambda x: T.flatten(x, outdim),
    "Dot": lambda: T.dot, "Dot22": lambda: T.dot, "BatchedDot": lambda: T.batched_dot,
    "Alloc": lambda: T.alloc, "Shape": lambda: T.shape,
    "AllocEmpty": lambda dtype: lambda *shape: T.zeros(shape, dtype),
    "Softmax": lambda: T.nnet.softmax, "LogSoftmax": lambda: T.nnet.logsoftmax,
    "SoftmaxWithBias": lambda: T.nnet.softmax_with_bias,
    "Rebroadcast": lambda *axes: lambda x: _rebroadcast(x, axes),
    "SpecifyShape": lambda: T.specify_shape,
    "MaxAndArgmax": lambda axis=None: lambda x: T.max_and_argmax(x, axis),
    "Argmax": lambda axis=None: lambda x: T.argmax(x, axis),
    "ExtractDiag": lambda offset=0, axis1=0, axis2=1, view=False: (
        lambda x: T.diagonal(x, offset, axis1, axis2)),
    "AllocDiag": lambda *a, **w: T.alloc_diag,
    "ARange": lambda dtype: lambda start, stop, step: T.arange(start, stop, step, dtype),
    "Split": lambda len_splits: (
        lambda x, axis, sizes: T.split(x, sizes, len_splits, axis)),
    "CumOp": lambda axis=None, mode="add": (
        lambda x: (T.cumsum if mode == "add" else T.cumprod)(x, axis)),
    "SortOp": lambda kind="quicksort", order=None: lambda x, axis=-1: T.sort(x, axis),
    "ArgSortOp": lambda kind="quicksort", order=None: lambda x, axis=-1: T.argsort(x, axis),
    "CorrMM": lambda border_mode="valid", subsample=(1, 1), filter_dilation=(1, 1), num_groups=1,
        unshared=False: lambda x, w: T.nnet.conv2d(
            x, w, border_mode=border_mode, subsample=subsample, filter_flip=False,
            filter_dilation=filter_dilation, num_groups=num_groups),
}  # fmt: skip


def _rebroadcast(x: Any, axes: Any) -> Any:
    for axis, broadcasts in axes:
        x = T.addbroadcast(x, axis) if broadcasts else T.unbroadcast(x, axis)
    return x


def _made() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in filter(None, _TABLE.splitlines()):
        name, *targets = line.split()
        own = ", ".join(t.rpartition(".")[2] for t in targets)
        body = {"targets": tuple(targets), "__doc__": f"Theano's ``{name}``: symdnn's ``{own}``."}
        found[name] = OpName(name, (Op,), {**body, "abstract": True})
    return found


#: The stand-ins by name.
NAMES = _made()
globals().update(NAMES)
__all__ += list(NAMES)
