"""Factors of a product's columns are multiplied into the parameters.

``gamma * (x @ w + b)``, a layer scale, is ``x @ (w * gamma) + b * gamma``: a product with a bias,
whose epilogue may add a residual, too. The parameter cache keeps the scaled parameters
(:mod:`symdnn.compile.program.parameter_cache`), so only parameters that the function does not
update are scaled. That is done in float32 and rounded once. Not in float16, whose smallest number
is above the product of a usual weight and a factor of 1e-6, from which layer scales start.
"""

from __future__ import annotations

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cublaslt.joined import Parameters
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Mul, cast
from symdnn.ops.linalg.dot import Dot
from symdnn.rewriting.facts import only_axis
from symdnn.rewriting.rewrite import Context

_DTYPES = ("bfloat16", "float32", "float64")


def scale_parameters(context: Context, name: str) -> None:
    """Multiply the factors into the parameters, for the rewrite ``name``."""
    order = context.fgraph.toposort()
    factors = [n for n in order if isinstance(n.op, Mul) and len(n.inputs) == 2]
    if not factors or not Parameters.are_kept(context, order):
        return  # each call would scale the weights
    scaled = _Scaled(context, Parameters(context, order))
    for node in factors:
        found = scaled.of(node)
        if found is not None:
            context.replace([(node.outputs[0], found)], name)


class _Scaled:
    """Products, with what is between them and a factor, whose parameters are scaled."""

    def __init__(self, context: Context, is_parameter: Parameters) -> None:
        self.context, self.is_parameter = context, is_parameter

    def of(self, node: Apply) -> Variable | None:
        """The product of two values, where one is a row of parameters; None if it has to stay."""
        for v, factor in (node.inputs, reversed(node.inputs)):
            axis = self._axis(factor, v)
            if axis is not None:
                found = self._times(v, dimshuffle(factor, (axis,)), axis)
                if found is not None:
                    return found
        return None

    def _axis(self, row: Variable, v: Variable) -> int | None:
        """The only dimension of ``v`` along which a row of parameters varies."""
        fits = row.type.ndim == v.type.ndim >= 2 and row.type.dtype == v.type.dtype in _DTYPES
        return only_axis(row) if fits and self.is_parameter(row) else None

    def _times(self, v: Variable, factor: Variable, axis: int) -> Variable | None:
        """``v`` times a vector along ``axis``, computed from scaled parameters."""
        if (node := self.context.sole_maker(v)) is None:
            return None
        with inherit(node.origin, node.hints):
            if isinstance(node.op, Dot) and v.type.ndim == 2 and axis == 1:
                x, w = node.inputs
                fits = w.type.ndim == 2 and self.is_parameter(w)
                return node.op(x, _scaled(w, dimshuffle(factor, ("x", 0)))) if fits else None
            if isinstance(node.op, Add):
                return self._sum_times(node, factor, axis)
            inside = self._before_view(node, axis)
            inner = None if inside is None else self._times(node.inputs[0], factor, inside)
            return None if inner is None else node.op(inner, *node.inputs[1:])

    def _sum_times(self, node: Apply, factor: Variable, axis: int) -> Variable | None:
        """A value and a bias along ``axis``, each times the factor."""
        out = node.outputs[0]
        for v, bias in (node.inputs, reversed(node.inputs)):
            if self._axis(bias, out) == axis and v.type.broadcastable == out.type.broadcastable:
                inner = self._times(v, factor, axis)
                row = ["x"] * out.type.ndim
                shape = tuple(0 if d == axis else w for d, w in enumerate(row))
                return None if inner is None else inner + _scaled(bias, dimshuffle(factor, shape))
        return None

    def _before_view(self, node: Apply, axis: int) -> int | None:
        """The dimension before a view that ``axis`` is behind it."""
        if isinstance(node.op, DimShuffle):
            found = node.op.pattern[axis]
            return found if isinstance(found, int) else None
        v, out, facts = node.inputs[0], node.outputs[0], self.context.shapes
        if not isinstance(node.op, Reshape) or axis != out.type.ndim - 1 or v.type.ndim < 1:
            return None
        return v.type.ndim - 1 if facts.same(facts.dims(v)[-1], facts.dims(out)[-1]) else None


def _scaled(parameter: Variable, factor: Variable) -> Variable:
    wide = work_dtype(parameter.type.dtype)
    return cast(cast(parameter, wide) * cast(factor, wide), parameter.type.dtype)
