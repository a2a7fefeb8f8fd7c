"""Mixed precision: GEMMs and convolutions in 16 bits, in float32 what would lose digits.

The flag ``amp`` chooses the type (bf16 or fp16). Convolutions, GEMMs and recurrent networks read
their float32 operands rounded to it and accumulate in float32. Their results stay in 16 bits
through elementwise ops, pooling, joins and normalisation, whose statistics and parameters are
float32. Elementwise nodes compute in float32 and round where a value is stored. Reductions,
softmax, losses, updates of shared variables and results are float32, so the types that a program
declares do not change. A parameter is rounded once for all its readers. (Micikevicius et al. 2018;
for the loss scaling that fp16 needs see :mod:`symdnn.loss_scale`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.target import Libraries, Target
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.join import Join
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.collective.base import Reducing
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.epilogue import EpilogueOp, scaled
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.opt.precision.amp_rules import (
    TENSOR_CORE_OPS,
    is_exact,
    is_float32,
    may_round_result,
    narrow_inputs,
    only_moves,
    stays_in_register,
    takes_16_bits,
    uses_tensor_cores,
)
from symdnn.rewriting.rewrite import Context, graph_rewrite

_DTYPE_OF_FLAG = {"bf16": "bfloat16", "fp16": "float16"}


def precision_reason(target: Target) -> str | None:
    """The reason why the flag ``amp`` has no effect on this target; None where it has one."""
    dtype = _DTYPE_OF_FLAG.get(str(config.amp))
    if dtype is None:
        return "amp=off"
    if target.kind != "cuda":
        return f"mixed precision is for GPUs, the target is {target}"
    least = (8, 0) if dtype == "bfloat16" else (7, 0)
    if (target.compute_capability or (0, 0)) < least:
        return f"{target} has no tensor cores for {dtype}"
    return None


def amp_dtype(target: Target) -> str | None:
    """The dtype of the flag ``amp`` on this target; None where it has no effect."""
    return _DTYPE_OF_FLAG[str(config.amp)] if precision_reason(target) is None else None


def precision_note(target: Target, applied: bool) -> str:
    """A note that ``amp`` is set without effect, and why; empty where it is off or has an effect.

    ``applied`` says whether the rewrite was switched on.
    """
    reason = precision_reason(target)
    if str(config.amp) == "off" or (reason is None and applied):
        return ""
    return f"amp={config.amp} changes nothing: {reason or 'the rewrite mixed_precision is off'}"


@graph_rewrite("precision", tags=("amp",), name="mixed_precision")
def mixed_precision(context: Context) -> None:
    """GEMMs and convolutions of float32, and ops behind them, in the dtype of the flag ``amp``."""
    if precision_reason(context.target) is not None:
        return
    order = context.fgraph.toposort()
    dtype = _DTYPE_OF_FLAG[str(config.amp)]
    if any(map(uses_tensor_cores, order)):
        _MixedPrecision(context.fgraph, order, dtype, context.target.libraries).replace()


def precision_text(fgraph: FunctionGraph) -> str:
    """The dtypes of GEMMs and convolutions, for reports; empty where there are none."""
    counts: dict[str, int] = {}
    for node in fgraph.toposort():
        if isinstance(neutral_of(node.op), TENSOR_CORE_OPS) and isinstance(
            node.inputs[0].type, TensorType
        ):
            dtype = node.inputs[0].type.dtype
            counts[dtype] = counts.get(dtype, 0) + 1
    shown = ", ".join(f"{n} of {dtype}" for dtype, n in sorted(counts.items()))
    return f"GEMMs and convolutions: {shown}" if shown else ""


class _MixedPrecision:
    """The new graph: each value in float32, in 16 bits, or both, as its readers need it."""

    def __init__(
        self, fgraph: FunctionGraph, order: Sequence[Apply], dtype: str, libraries: Libraries
    ) -> None:
        self.fgraph, self.order, self.dtype, self.libraries = fgraph, order, dtype, libraries
        self._wide_of: dict[Variable, Variable] = {}  # float32 values of the new graph
        self._narrow_of: dict[Variable, Variable] = {}  # values that exist only in 16 bits
        self._rounded_copies: dict[Variable, Variable] = {}  # float32 values, rounded for GEMMs
        self._result_of: dict[Variable, Variable] = {}  # float32 results with narrow readers
        self.narrow: set[Variable] = set()

    def replace(self) -> None:
        """Build the new graph and replace the old one by it."""
        for node in self.order:
            with inherit(node.origin, node.hints, node.written):
                self._visit(node)
        outputs = dict.fromkeys(self.fgraph.outputs)
        pairs = [(v, self._result_of[v] if v in self._result_of else self.wide(v)) for v in outputs]
        self.fgraph.replace_all([(a, b) for a, b in pairs if a is not b], "mixed_precision")

    def _visit(self, node: Apply) -> None:
        if uses_tensor_cores(node) and self._library_has_dtype(node):
            self._gemm_or_conv(node)
        elif isinstance(node.op, Cast) and self._is_rounding(node):
            self._wide_of[node.outputs[0]] = self.narrowed(node.inputs[0])
        elif isinstance(node.op, Cast) and self._is_widening(node):
            self._narrow_of[node.outputs[0]] = self.wide(node.inputs[0])
            self.narrow.add(node.outputs[0])
        elif isinstance(node.op, Elemwise):
            self._elementwise(node)
        else:
            which = narrow_inputs(node, self.narrow.__contains__)
            if which is None or self._is_summed_wide(node):
                self._in_float32(node)
                self._round_what_is_read_rounded(node)
            else:
                self._in_16_bits(node, which)

    def _library_has_dtype(self, node: Apply) -> bool:
        """Whether the library has the op for the 16-bit type."""
        op = node.op
        return not isinstance(op, Lowered) or op.dtype_reason(self.dtype, self.libraries) is None

    # -- values -------------------------------------------------------------------------------

    def wide(self, v: Variable) -> Variable:
        """``v`` in the new graph, of the dtype that it had."""
        if v not in self._wide_of and v in self._narrow_of:
            self._wide_of[v] = cast(self._narrow_of[v], "float32")
        return self._wide_of.get(v, v)

    def narrowed(self, v: Variable) -> Variable:
        """``v`` in 16 bits."""
        if v in self._narrow_of:
            return self._narrow_of[v]
        if v not in self._rounded_copies:
            self._rounded_copies[v] = self._rounded(v)
        return self._rounded_copies[v]

    def _rounded(self, v: Variable) -> Variable:
        if isinstance(v, Constant):
            return Constant(v.data.astype(numpy_dtype(self.dtype)), v.name)
        node = v.owner
        if node is not None and isinstance(node.op, Cast) and v not in self._wide_of:
            x = node.inputs[0]
            if x.type.dtype == self.dtype:
                return self.wide(x)  # a cast from the same 16-bit dtype
        if node is not None and (only_moves(node) or isinstance(node.op, Alloc)):
            # One cast serves all views of a value, and may join the kernel that computes it.
            return node.op(
                *(self.narrowed(x) if is_float32(x) else self.wide(x) for x in node.inputs)
            )
        return cast(self.wide(v), self.dtype)

    # -- casts of the program -----------------------------------------------------------------

    def _is_rounding(self, node: Apply) -> bool:
        """Whether the program rounds a float32 value to the 16-bit type."""
        return is_float32(node.inputs[0]) and node.outputs[0].type.dtype == self.dtype

    def _is_widening(self, node: Apply) -> bool:
        """Whether the program widens what an op for tensor cores gave in the 16-bit type."""
        x = node.inputs[0]
        made = x.owner is not None and isinstance(neutral_of(x.owner.op), TENSOR_CORE_OPS)
        return made and is_float32(node.outputs[0]) and x.type.dtype == self.dtype

    # -- nodes --------------------------------------------------------------------------------

    def _in_float32(self, node: Apply) -> None:
        inputs = [self.wide(v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            new = node.op.make_node(*inputs, hints=node.hints)
            self._wide_of.update(zip(node.outputs, new.outputs, strict=True))

    def _in_16_bits(self, node: Apply, which: Sequence[int], op: Any = None) -> None:
        """The node with the inputs ``which`` in 16 bits; results may become narrow by that."""
        inputs = [
            self.narrowed(v) if i in which else self.wide(v) for i, v in enumerate(node.inputs)
        ]
        new = (op or node.op).make_node(*inputs, hints=node.hints)
        for old, out in zip(node.outputs, new.outputs, strict=True):
            changed = isinstance(out.type, TensorType) and out.type.dtype != old.type.dtype
            (self._narrow_of if changed else self._wide_of)[old] = out
            if changed:
                self.narrow.add(old)

    def _gemm_or_conv(self, node: Apply) -> None:
        op = node.op
        if isinstance(op, EpilogueOp) and not op.is_plain:
            self._with_epilogue(node)
        else:
            self._in_16_bits(node, [i for i, v in enumerate(node.inputs) if is_float32(v)])

    def _with_epilogue(self, node: Apply) -> None:
        """A convolution that scales its result or adds to a residual operand.

        With a residual operand in 16 bits the op does so itself. Otherwise scaling and adding (an
        update of filters, say) become float32 ops behind a plain convolution.
        """
        op: Any = node.op
        i = op.output_index
        if i is not None and node.inputs[i] in self.narrow:
            low = op.ending(self.dtype, alpha=op.alpha, residual=op.beta)
            self._in_16_bits(node, [k for k, v in enumerate(node.inputs) if is_float32(v)], low)
            return
        own = node.inputs[:i] if i is not None else node.inputs
        plain = replace(op, epilogue=None)
        made = plain.make_node(
            *(self.narrowed(v) if is_float32(v) else self.wide(v) for v in own), hints=node.hints
        )
        y: Any = scaled(cast(made.outputs[0], "float32"), op.alpha)
        if i is not None:
            y = y + scaled(self.wide(node.inputs[i]), op.beta)
        self._wide_of[node.outputs[0]] = y

    def _elementwise(self, node: Apply) -> None:
        """Computed in float32, and rounded where the result is narrow and will be stored."""
        self._in_float32(node)
        (out,) = node.outputs
        if not self._stays_narrow(node):
            self._round_what_is_read_rounded(node)
            return
        if stays_in_register(node, self.fgraph.users(out)):
            self.narrow.add(out)
        elif may_round_result(node) and any(takes_16_bits(n) for n, _ in self.fgraph.users(out)):
            if self.fgraph.is_output(out):
                self._result_of[out] = self.wide(out)
            self._round_result(out)

    def _round_result(self, out: Variable) -> None:
        """Let all readers of a float32 value have it in 16 bits."""
        self.narrow.add(out)
        self._narrow_of[out] = self.narrowed(out)
        self._wide_of.pop(out, None)

    def _round_what_is_read_rounded(self, node: Apply) -> None:
        """Results that are copied for tensor cores in any case, unless they are views."""
        if isinstance(node.op, DimShuffle | Reshape):
            return
        for out in node.outputs:
            if is_float32(out) and self._is_read_rounded(out):
                self._round_result(out)

    def _is_read_rounded(self, v: Variable) -> bool:
        """Whether tensor cores will round ``v``, and beside them only sums read it.

        Then its float32 value need not be stored. Views of it count as readers of their own.
        """
        readers = self._readers(v)
        rounding = [n for n in readers if n is not None and self._rounds_inputs(n)]
        others = [n for n in readers if n not in rounding]
        return bool(rounding) and all(
            n is not None and isinstance(neutral_of(n.op), Reduce) for n in others
        )

    def _rounds_inputs(self, node: Apply) -> bool:
        if isinstance(node.op, Cast):
            return self._is_rounding(node)
        return uses_tensor_cores(node) and self._library_has_dtype(node)

    def _is_summed_wide(self, node: Apply) -> bool:
        """Whether ranks sum what a node joins in float32, in which GEMMs then make it in place."""
        readers = [n for v in node.outputs for n, _ in self.fgraph.users(v)]
        return isinstance(node.op, Join) and all(
            n is not None and isinstance(n.op, Reducing) and not takes_16_bits(n) for n in readers
        )

    def _readers(self, v: Variable) -> list[Apply | None]:
        found: list[Apply | None] = []
        for node, _ in self.fgraph.users(v):
            if node is not None and only_moves(node):
                found += self._readers(node.outputs[0])
            else:
                found.append(node)
        return found

    def _stays_narrow(self, node: Apply) -> bool:
        """Whether every operand of the result's shape is narrow, or exact in 16 bits."""
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
