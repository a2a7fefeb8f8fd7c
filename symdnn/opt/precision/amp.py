"""Mixed precision: products in 16 bits, the rest of a program so that nothing is lost by it.

The flag ``amp`` says the type (bf16 or fp16). Convolutions, matrix products and recurrent nets get
their float32 operands in it and accumulate in float32; what they give stays in 16 bits through
elementwise work, pooling, joins and normalisation, whose statistics and parameters are float32.
Elementwise nodes compute in float32 and round where a value is stored. Reductions, softmax, losses,
updates of shared variables and results are float32: every type that a program shows stays. A
parameter is rounded once for all its readers. (Micikevicius et al. 2018; for fp16 see
:mod:`symdnn.loss_scale`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.epilogue import EpilogueOp, scaled
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.opt.precision.amp_rules import (
    PRODUCTS,
    inside_a_kernel,
    is_exact,
    is_float32,
    is_product,
    narrow_inputs,
    safe,
    takes_16_bits,
)
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "mixed_precision", "precision_note", "precision_reason", "precision_text"]

_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def precision_reason(target: Target) -> str | None:
    """Why the flag ``amp`` changes nothing on this target; None where it does."""
    dtype = _TYPES.get(str(config.amp))
    if dtype is None:
        return "amp=off"
    if target.kind != "cuda":
        return f"mixed precision is for GPUs, the target is {target}"
    least = (8, 0) if dtype == "bfloat16" else (7, 0)
    if (target.compute_capability or (0, 0)) < least:
        return f"{target} has no tensor cores for {dtype}"
    return None


def precision_note(target: Target, applied: bool) -> str:
    """That ``amp`` is set and changes nothing, and why; empty where it is off or does.

    ``applied`` says whether the rewrite was switched on.
    """
    reason = precision_reason(target)
    if str(config.amp) == "off" or (reason is None and applied):
        return ""
    return f"amp={config.amp} changes nothing: {reason or 'the rewrite mixed_precision is off'}"


@graph_rewrite("precision", tags=("amp",), name="mixed_precision")
def mixed_precision(context: Context) -> None:
    """Products of float32, and what follows them, in the 16-bit type of the flag ``amp``."""
    if context.inner or precision_reason(context.target) is not None:
        return
    order = context.fgraph.toposort()
    dtype = _TYPES[str(config.amp)]
    if any(map(is_product, order)):
        _Rebuild(context.fgraph, order, dtype).replace()


def precision_text(fgraph: FunctionGraph) -> str:
    """In which dtypes products are computed, for reports; empty where there are none."""
    counts: dict[str, int] = {}
    for node in fgraph.toposort():
        if isinstance(neutral_of(node.op), PRODUCTS) and isinstance(
            node.inputs[0].type, TensorType
        ):
            dtype = node.inputs[0].type.dtype
            counts[dtype] = counts.get(dtype, 0) + 1
    shown = ", ".join(f"{n} of {dtype}" for dtype, n in sorted(counts.items()))
    return f"products and convolutions: {shown}" if shown else ""


class _Rebuild:
    """Each value in float32 and in 16 bits, as far as either is asked for."""

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply], dtype: str) -> None:
        self.fgraph, self.order, self.dtype = fgraph, order, dtype
        self._wide: dict[Variable, Variable] = {}
        self._half: dict[Variable, Variable] = {}  # of values that exist in 16 bits alone
        self._copies: dict[Variable, Variable] = {}  # of float32 values, for products to read
        self._shown: dict[Variable, Variable] = {}  # results that others read rounded
        self.narrow: set[Variable] = set()

    def replace(self) -> None:
        """Put the new graph in the place of the old one."""
        for node in self.order:
            with inherit(node.origin, node.hints, node.written):
                self._visit(node)
        outputs = dict.fromkeys(self.fgraph.outputs)
        pairs = [(v, self._shown[v] if v in self._shown else self.wide(v)) for v in outputs]
        self.fgraph.replace_all([(a, b) for a, b in pairs if a is not b], "mixed_precision")

    def _visit(self, node: Apply) -> None:
        if is_product(node) and self._is_taken(node):
            self._multiply(node)
        elif isinstance(node.op, Elemwise):
            self._elementwise(node)
        else:
            which = narrow_inputs(node, self.narrow.__contains__)
            if which is None:
                self._as_it_is(node)
            else:
                self._in_16_bits(node, which)

    def _is_taken(self, node: Apply) -> bool:
        """Whether the library has the op for the 16-bit type."""
        dtypes = node.op.dtypes if isinstance(node.op, Lowered) else ()
        return not dtypes or self.dtype in dtypes

    # -- values -------------------------------------------------------------------------------

    def wide(self, v: Variable) -> Variable:
        """``v`` in the new graph, of its own type."""
        if v not in self._wide and v in self._half:
            self._wide[v] = cast(self._half[v], "float32")
        return self._wide.get(v, v)

    def half(self, v: Variable) -> Variable:
        """``v`` in 16 bits."""
        if v in self._half:
            return self._half[v]
        if v not in self._copies:
            self._copies[v] = self._rounded(v)
        return self._copies[v]

    def _rounded(self, v: Variable) -> Variable:
        if isinstance(v, Constant):
            return Constant(v.data.astype(numpy_dtype(self.dtype)), v.name)
        node = v.owner
        if node is not None and isinstance(node.op, Cast) and v not in self._wide:
            x = node.inputs[0]
            if x.type.dtype == self.dtype:
                return self.wide(x)  # it came in 16 bits
        if node is not None and isinstance(node.op, DimShuffle) and v not in self._wide:
            return dimshuffle(self.half(node.inputs[0]), node.op.pattern)  # one cast for all views
        return cast(self.wide(v), self.dtype)

    # -- nodes --------------------------------------------------------------------------------

    def _as_it_is(self, node: Apply) -> None:
        inputs = [self.wide(v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            new = node.op.make_node(*inputs, hints=node.hints)
            self._wide.update(zip(node.outputs, new.outputs, strict=True))

    def _in_16_bits(self, node: Apply, which: Sequence[int], op: Any = None) -> None:
        """The node with these inputs in 16 bits; so are the results that have their type then."""
        inputs = [self.half(v) if i in which else self.wide(v) for i, v in enumerate(node.inputs)]
        new = (op or node.op).make_node(*inputs, hints=node.hints)
        for old, out in zip(node.outputs, new.outputs, strict=True):
            changed = isinstance(out.type, TensorType) and out.type.dtype != old.type.dtype
            (self._half if changed else self._wide)[old] = out
            if changed:
                self.narrow.add(old)

    def _multiply(self, node: Apply) -> None:
        op = node.op
        if isinstance(op, EpilogueOp) and not op.is_plain:
            self._scaled(node)
        else:
            self._in_16_bits(node, [i for i, v in enumerate(node.inputs) if is_float32(v)])

    def _scaled(self, node: Apply) -> None:
        """A convolution that scales, or adds to a float32 value (an update of kernels), does so in
        float32; one that adds to what has 16 bits, as before."""
        op: Any = node.op
        i = op.output_index
        if i is not None and node.inputs[i] in self.narrow:
            low = op.ending(self.dtype, alpha=op.alpha, residual=op.beta)
            self._in_16_bits(node, [k for k, v in enumerate(node.inputs) if is_float32(v)], low)
            return
        own = node.inputs[:i] if i is not None else node.inputs
        plain = replace(op, epilogue=None)
        made = plain.make_node(
            *(self.half(v) if is_float32(v) else self.wide(v) for v in own), hints=node.hints
        )
        y: Any = scaled(cast(made.outputs[0], "float32"), op.alpha)
        if i is not None:
            y = y + scaled(self.wide(node.inputs[i]), op.beta)
        self._wide[node.outputs[0]] = y

    def _elementwise(self, node: Apply) -> None:
        """Computed in float32; rounded where the result is narrow and will be stored."""
        self._as_it_is(node)
        (out,) = node.outputs
        if not self._stays_narrow(node):
            return
        if inside_a_kernel(node, self.fgraph.users(out)):
            self.narrow.add(out)
        elif safe(node) and any(takes_16_bits(n) for n, _ in self.fgraph.users(out)):
            self.narrow.add(out)
            if self.fgraph.is_output(out):
                self._shown[out] = self.wide(out)
            self._half[out] = cast(self.wide(out), self.dtype)
            self._wide.pop(out, None)

    def _stays_narrow(self, node: Apply) -> bool:
        """Whether every operand of the result's shape is narrow, or as good in 16 bits."""
        out = node.outputs[0]
        if not is_float32(out):
            return False
        floats = [
            v for v in node.inputs
            if is_float32(v) and v.type.broadcastable == out.type.broadcastable
        ]  # fmt: skip
        narrow = [v in self.narrow for v in floats]
        return any(narrow) and all(n or is_exact(v) for n, v in zip(narrow, floats))


RULES = (mixed_precision,)
