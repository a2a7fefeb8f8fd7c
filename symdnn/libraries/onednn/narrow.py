"""Products of 16 bits that the processor has no instructions for, in float32.

float16, and bfloat16 on an older processor, are types of storage there: a convolution or product
would run its reference. It is computed in float32, and so is what follows it: functions of
elements, norms, pools, copies and sums stay in float32 up to a result of the graph, or an op of
another kind, where the value is rounded. So no value between two products is converted or rounded.
"""

from __future__ import annotations

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.batchnorm import Normalise, NormGrad
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.softmax import LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.opt.precision.amp_rules import DATA_MOVEMENT_OPS

_PRODUCTS: tuple[type[Op], ...] = (
    Attention, AttentionGrad, BatchedDot, Conv, ConvGradInput, ConvGradWeight, Dot,
)  # fmt: skip
_FOLLOWERS: tuple[type[Op], ...] = (
    *DATA_MOVEMENT_OPS, AveragePoolGrad, Elemwise, LogSoftmaxGrad, MaxPoolGrad, Normalise,
    NormGrad, Pool, Reduce, Softmax, SoftmaxGrad,
)  # fmt: skip


class Widening:
    """Products with operands of ``dtype``, and what follows them, in float32."""

    def __init__(self, fgraph: FunctionGraph, dtype: str) -> None:
        self.fgraph, self.dtype = fgraph, dtype
        self._wide_of: dict[Variable, Variable] = {}  # what is computed in float32
        self._copies: dict[Variable, Variable] = {}  # what is widened for it

    def replace(self, reason: str) -> None:
        """Replace what others read of the values by their rounded ones."""
        nodes = self.fgraph.toposort()
        if not any(self._is_product(n) for n in nodes):
            return
        for node in nodes:
            if self._is_product(node) or self._follows(node):
                with inherit(node.origin, node.hints, node.written):
                    self._widen(node)
        pairs = [(v, cast(w, self.dtype)) for v, w in self._wide_of.items() if self._is_read(v)]
        self.fgraph.replace_all(pairs, reason)

    def _is_narrow(self, v: Variable) -> bool:
        return isinstance(v.type, TensorType) and v.type.dtype == self.dtype

    def _is_product(self, node: Apply) -> bool:
        floats = any(map(self._is_narrow, node.inputs))
        matrices = not isinstance(node.op, Dot) or all(v.type.ndim > 1 for v in node.inputs)
        return floats and matrices and isinstance(node.op, _PRODUCTS)

    def _follows(self, node: Apply) -> bool:
        narrow = all(map(self._is_narrow, node.outputs))
        wide = any(v in self._wide_of for v in node.inputs)
        return narrow and wide and isinstance(node.op, _FOLLOWERS)

    def _widen(self, node: Apply) -> None:
        inputs = [self._wide(v) if self._is_narrow(v) else v for v in node.inputs]
        new = node.op.make_node(*inputs, hints=node.hints)
        for old, out in zip(node.outputs, new.outputs, strict=True):
            if self._is_narrow(old) and out.type.dtype == "float32":
                self._wide_of[old] = out

    def _wide(self, v: Variable) -> Variable:
        """``v`` in float32."""
        if v in self._wide_of:
            return self._wide_of[v]
        if isinstance(v, Constant):
            self._copies[v] = Constant(v.data.astype(numpy_dtype("float32")), v.name)
        elif v not in self._copies:
            self._copies[v] = cast(v, "float32")
        return self._copies[v]

    def _is_read(self, v: Variable) -> bool:
        """Whether a result, or a node that is not in float32, reads ``v``."""
        users = self.fgraph.users(v)
        return any(n is None or not any(o in self._wide_of for o in n.outputs) for n, _ in users)
