"""Classes of Theano's ops by name, for ``isinstance(node.op, T.elemwise.Sum)`` and their like.

Each is a stand-in: instances are the ops of symdnn that compute the same. Calling it with Theano's
arguments makes a function of variables, as far as one is listed here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from symdnn import tensor as T
from symdnn.graph.op import Op
from symdnn.graph.type import Type
from symdnn.graph.variable import Variable, as_variable

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
        made = isinstance(op, AppliedOp) and issubclass(op.kind, cls)
        return made or isinstance(op, cls._classes()) or type.__instancecheck__(cls, op)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls._classes()) or type.__subclasscheck__(cls, kind)

    def __call__(cls, *args: Any, **words: Any) -> Any:
        maker = cls.__dict__.get("maker") or _MAKERS.get(cls.__name__)
        if maker is None:
            raise TypeError(
                f"{cls.__name__} is here to name ops of graphs; apply the function of T instead "
                f"({_FUNCTIONS.get(cls.__name__, 'see docs/theano.md')})"
            )
        made = maker(*args, **words)
        return AppliedOp(cls, made, args, words) if isinstance(made, FunctionType) else made


def stand_in(
    name: str, maker: Callable[..., Any] | None, *targets: str, doc: str | None = None, **body: Any
) -> Any:
    """The class ``name`` of the ops ``targets``; ``maker`` takes Theano's arguments.

    Its docstring is ``doc``, or that of ``maker``; without ``maker`` the table of makers is asked.
    """
    made = {} if maker is None else {"maker": staticmethod(maker)}
    found = {"targets": targets, "abstract": True, "__doc__": doc or maker.__doc__, **made, **body}
    return OpName(name, (Op,), found)


class AppliedOp:
    """An instance of a stand-in: a function of variables that is called as an op of Theano's.

    ``make_node`` gives the node of the (first) output. Two are equal that were made alike.
    """

    def __init__(self, kind: type, function: Any, args: Any, words: Any) -> None:
        self.kind, self.function = kind, function
        self.made_by = (kind, args, tuple(sorted(words.items())))

    def __call__(
        self, *inputs: Any, return_list: bool = False, name: str | None = None, **words: Any
    ) -> Any:
        found = self.function(*inputs, **words)
        if name is not None and isinstance(found, Variable):
            found.name = name
        return [found] if return_list and isinstance(found, Variable) else found

    def make_node(self, *inputs: object) -> Any:
        """The node on ``inputs``."""
        found = self(*inputs)
        return (found if isinstance(found, Variable) else found[0]).owner

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AppliedOp):
            return self.made_by == other.made_by
        plain = not self.made_by[1] and not self.made_by[2]
        return plain and isinstance(other, self.kind)  # an op of symdnn, as node.op

    def __hash__(self) -> int:
        return hash(self.kind)

    def __reduce__(self) -> tuple[object, ...]:
        kind, args, words = self.made_by
        return _made_again, (kind, args, dict(words))

    def __str__(self) -> str:
        return str(self.kind.__name__)


def _made_again(kind: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    return kind(*args, **words)


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
Bartlett
Choose
CpuContiguous
Default
DiffOp
Dot22Scalar         linalg.products.Dot
Eye
FillDiagonal
FillDiagonalOffset
Images2Neibs
Mean
MultinomialFromUniform
PermuteRowElements
Prepend_scalar_constant_to_each_row
Prepend_scalar_to_each_row
RavelMultiIndex
ScalarFromTensor
SearchsortedOp
TensorFromScalar
Tile
Tri
UnravelIndex
Pool                nn.pool.Pool
Prod                array.reduce.Prod
ProdWithoutZeros
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
Unique              array.sort.Unique
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

_FUNCTIONS = {"CAReduceDtype": "T.sum, T.prod, ...", "Composite": "theano.scalar.Composite"}


def _elemwise(scalar_op: object, *args: object, **words: object) -> Any:
    from symdnn.compat.theano.names.scalar_names import elementwise

    return elementwise(scalar_op)


def _dim_shuffle(
    input_broadcastable: object, new_order: Any, inplace: bool = True
) -> Callable[..., Any]:
    return lambda x: as_variable(x).dimshuffle(*new_order)


def _reduced(name: str) -> Callable[..., Any]:
    def make(
        axis: object = None, dtype: object = None, acc_dtype: object = None, **words: object
    ) -> Any:
        function = getattr(T, name)
        given = {} if name in ("all", "any") else {"dtype": dtype}
        return lambda x: function(x, axis=axis, **given)

    return make


def _reduce(scalar_op: object, axis: object = None) -> Callable[..., Any]:
    name = str(scalar_op).strip("<>").split()[-1].lower()  # "<elementwise function add>"
    names = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min", "and_": "all",
             "or_": "any"}  # fmt: skip
    if name not in names:
        raise TypeError(f"CAReduce({scalar_op}): wanted one of {', '.join(names)}")
    function = getattr(T, names[name])
    return lambda x: function(x, axis=axis)


def _index(idx_list: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Theano's ``idx_list`` as an index: types stand for the ``inputs`` in their order."""
    left = iter(inputs)

    def value(part: object) -> Any:
        if isinstance(part, slice):
            return slice(value(part.start), value(part.stop), value(part.step))
        return next(left) if isinstance(part, Type) else part

    return tuple(map(value, idx_list))


def _subtensor(idx_list: Sequence[Any]) -> Callable[..., Any]:
    return lambda x, *inputs: as_variable(x)[_index(idx_list, inputs)]


def _inc_subtensor(
    idx_list: Sequence[Any], inplace: bool = False, set_instead_of_inc: bool = False,
    destroyhandler_tolerate_aliased: object = None,
) -> Callable[..., Any]:  # fmt: skip
    change = T.set_subtensor if set_instead_of_inc else T.inc_subtensor
    return lambda x, y, *inputs: change(as_variable(x)[_index(idx_list, inputs)], y)


def _advanced_inc(inplace: bool = False, set_instead_of_inc: bool = False) -> Callable[..., Any]:
    change = T.set_subtensor if set_instead_of_inc else T.inc_subtensor
    return lambda x, y, *index: change(as_variable(x)[index], y)


def _permute_rows(x: object, y: object, inverse: object = 0) -> Any:
    """The elements of each row of ``x`` in the order of that row of ``y``, or the reverse."""
    rows = as_variable(y)
    order = T.switch(as_variable(inverse), T.argsort(rows, axis=-1), rows)
    return T.take_along_axis(as_variable(x), T.cast(order, "int64"), axis=-1)


def _from_uniform(pvals: object, unis: object, n: Any, odtype: str) -> Any:
    """How often each class is drawn, of ``n`` times for each row, by the numbers ``unis``."""
    p, u = as_variable(pvals), as_variable(unis)
    below = T.cumsum(p, axis=1).dimshuffle("x", 0, 1) > u.reshape((n, -1)).dimshuffle(0, 1, "x")
    counts = T.cast(below, "int8")
    first = T.concatenate([counts[:, :, :1], counts[:, :, 1:] - counts[:, :, :-1]], axis=2)
    return T.cast(first.sum(axis=0), p.dtype if odtype == "auto" else odtype)


def _softmax_grad(dy: Any, sm: Any) -> Any:
    """The gradient of a softmax of rows, ``sm``, for that of its output."""
    product = as_variable(dy) * sm
    return product - product.sum(axis=-1, keepdims=True) * sm


def _one_hot_grad(g: object, coding: object, index: object) -> Any:
    """The gradient of ``crossentropy_categorical_1hot`` by the probabilities ``coding``."""
    p = as_variable(coding)
    rows = T.arange(p.shape[0])
    return T.set_subtensor(T.zeros_like(p)[rows, index], -as_variable(g) / p[rows, index])


def _softmax_one_hot_grad(dy: object, sm: object, index: object) -> Any:
    """The gradient of the cross-entropy by the input of the softmax ``sm``."""
    p = as_variable(sm)
    less = T.inc_subtensor(p[T.arange(p.shape[0]), index], -1)
    g = as_variable(dy)
    return less * (g if g.ndim == 0 else g.dimshuffle(0, "x"))


def _named(name: str) -> Callable[..., Any]:
    """A function of ``theano.tensor``, found when it is called."""

    def call(*inputs: object, **words: object) -> Any:
        from symdnn.compat.theano.names import tensor_names

        for module in (tensor_names, T):
            if hasattr(module, name):
                return getattr(module, name)(*inputs, **words)
        raise AttributeError(name)

    return call


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
    "ProdWithoutZeros": lambda axis=None, dtype=None, acc_dtype=None: lambda x: T.prod(
        T.switch(T.eq(x, 0), 1, x), axis=axis, dtype=dtype),
    "Softmax": lambda: T.nnet.softmax, "LogSoftmax": lambda: T.nnet.logsoftmax,
    "SoftmaxWithBias": lambda: T.nnet.softmax_with_bias,
    "Rebroadcast": lambda *axes: lambda x: _rebroadcast(x, axes),
    "SpecifyShape": lambda: T.specify_shape,
    "MaxAndArgmax": lambda axis=None: lambda x: T.max_and_argmax(x, axis),
    "Argmax": lambda axis=None: lambda x: T.argmax(x, axis),
    "ExtractDiag": lambda offset=0, axis1=0, axis2=1, view=False: (
        lambda x: T.diagonal(x, offset, axis1, axis2)),
    "AllocDiag": lambda offset=0, axis1=0, axis2=1: T.nlinalg.AllocDiag(offset, axis1, axis2),
    "ARange": lambda dtype: lambda start, stop, step: T.arange(start, stop, step, dtype),
    "Split": lambda len_splits: (
        lambda x, axis, sizes: T.split(x, sizes, len_splits, axis)),
    "CumOp": lambda axis=None, mode="add": (
        lambda x: (T.cumsum if mode == "add" else T.cumprod)(x, axis)),
    "SortOp": lambda kind="quicksort", order=None: lambda x, axis=-1: T.sort(x, axis),
    "ArgSortOp": lambda kind="quicksort", order=None: lambda x, axis=-1: T.argsort(x, axis),
    "CAReduce": _reduce, "Subtensor": _subtensor, "IncSubtensor": _inc_subtensor,
    "AdvancedSubtensor": lambda *a, **w: lambda x, *index: as_variable(x)[index],
    "AdvancedSubtensor1": lambda sparse_grad=False: lambda x, index: as_variable(x)[index],
    "AdvancedIncSubtensor": _advanced_inc, "AdvancedIncSubtensor1": _advanced_inc,
    "Bartlett": lambda: _named("bartlett"),
    "Choose": lambda mode="raise": lambda a, choices: T.choose(a, choices, mode=mode),
    "CpuContiguous": lambda: lambda x: T.as_tensor_variable(x),
    "Default": lambda: _named("default"),
    "DiffOp": lambda n=1, axis=-1: lambda x: T.diff(x, n, axis),
    "Dot22Scalar": lambda: lambda x, y, a: T.dot(x, y) * a,
    "Gemm": lambda inplace=False: lambda z, a, x, y, b: b * as_variable(z) + a * T.dot(x, y),
    "Gemv": lambda inplace=False: lambda y, a, x, v, b: b * as_variable(y) + a * T.dot(x, v),
    "Ger": lambda destructive=False: lambda z, a, x, y: as_variable(z) + a * T.outer(x, y),
    "Eye": lambda dtype=None: lambda n, m=None, k=0: T.eye(n, m, k, dtype),
    "Tri": lambda dtype=None: lambda n, m=None, k=0: T.tri(n, m, k, dtype),
    "FillDiagonal": lambda: T.fill_diagonal, "FillDiagonalOffset": lambda: T.fill_diagonal_offset,
    "Images2Neibs": lambda mode="valid": lambda x, shape, step=None: T.nnet.images2neibs(
        x, shape, step, mode),
    "MakeVector": lambda dtype="int64": lambda *xs: T.stack([T.cast(x, dtype) for x in xs]),
    "Mean": lambda axis=None: lambda x: T.mean(x, axis=axis),
    "MultinomialFromUniform": lambda odtype="auto": (
        lambda p, u, n=1: _from_uniform(p, u, n, odtype)),
    "Nonzero": lambda: lambda x: list(T.nonzero(x)),
    "PermuteRowElements": lambda: _permute_rows,
    "RavelMultiIndex": lambda mode="raise", order="C": lambda *given: _named("ravel_multi_index")(
        given[:-1], given[-1], mode, order),
    "UnravelIndex": lambda order="C": lambda indices, dims: _named("unravel_index")(
        indices, dims, order),
    "RepeatOp": lambda axis=None: lambda x, repeats: T.repeat(x, repeats, axis),
    "ScalarFromTensor": lambda: lambda x: T.as_tensor_variable(x),
    "TensorFromScalar": lambda: lambda x: T.as_tensor_variable(x),
    "SearchsortedOp": lambda side="left": lambda x, v, sorter=None: T.searchsorted(
        x, v, side, sorter),
    "Shape_i": lambda i: lambda x: as_variable(x).shape[i],
    "SoftmaxGrad": lambda: _softmax_grad,
    "CrossentropyCategorical1HotGrad": lambda: _one_hot_grad,
    "CrossentropySoftmax1HotWithBiasDx": lambda **words: _softmax_one_hot_grad,
    "Prepend_scalar_constant_to_each_row": lambda val=0: (
        lambda mat: T.nnet.prepend_scalar_to_each_row(val, mat)),
    "Prepend_scalar_to_each_row": lambda: T.nnet.prepend_scalar_to_each_row,
    "Tile": lambda ndim=None: lambda x, reps: T.tile(x, reps, ndim),
    "TopKOp": lambda axis=-1, sorted=True, idx_dtype="int64", return_values=True,
        return_indices=True: lambda x, k: (
            T.topk_and_argtopk(x, k, axis, sorted, idx_dtype) if return_values and return_indices
            else T.topk(x, k, axis, sorted, idx_dtype) if return_values
            else T.argtopk(x, k, axis, sorted, idx_dtype)),
    "Unique": lambda return_index=False, return_inverse=False, return_counts=False, axis=None: (
        lambda x: T.unique(x, return_index, return_inverse, return_counts, axis)),
    "CrossentropyCategorical1Hot": lambda: T.nnet.crossentropy_categorical_1hot,
    "CrossentropySoftmaxArgmax1HotWithBias": lambda **words: (
        T.nnet.crossentropy_softmax_argmax_1hot_with_bias),
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
        here = f"symdnn's ``{own}``" if own else "an expression of several ops"
        found[name] = stand_in(name, None, *targets, doc=f"Theano's ``{name}``: {here}.")
    return found


#: The stand-ins by name.
NAMES = _made()
globals().update(NAMES)
__all__ += list(NAMES)
