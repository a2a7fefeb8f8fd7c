"""``nn.quantize``: a trained network in 8 bits, by the ranges that its values take on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import numpy as np

from symdnn.compile.call.compiled_function import Function
from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.errors import InputError, OptionError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.traverse import graph_inputs, leaves, toposort
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.nn.modules.module import Module
from symdnn.nn.quantization.ranges import Observer, channel_scales, parameters
from symdnn.ops.array.view import ForgetShape
from symdnn.ops.core.shape import DimShuffle, Reshape, SpecifyType
from symdnn.ops.elementwise.activations import Relu
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.quantize import FLOAT8, dequantize, quantize
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.batchnorm import BatchNormInference
from symdnn.ops.nn.conv import Conv

_KINDS = ("int8", *FLOAT8)


#: Weights -> their stored codes; None: they are rounded in each call.
_Stored = Callable[[Variable], Variable] | None


@dataclass(frozen=True)
class Layer:
    """A product in 8 bits: its name, the scale and zero point of its input, scales of weights."""

    name: str
    op: str
    scale: float
    zero: int
    weights: Array


class Quantized:
    """A network in 8 bits; see :func:`quantize_network`.

    Called on variables it gives the expression with weights stored in 8 bits. :meth:`training`
    gives the one with weights in floats that are rounded in each call, for fine-tuning; weights
    that training has changed are stored anew by :meth:`store`.
    """

    def __init__(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], plan: _Plan, single: bool
    ) -> None:
        self.inputs, self._outputs, self._plan, self._single = list(inputs), outputs, plan, single
        self._codes: dict[Variable, Shared] = {}
        self.store()

    @property
    def layers(self) -> list[Layer]:
        """The products that are computed in 8 bits."""
        return list(self._plan.layers)

    @property
    def parameters(self) -> list[Shared]:
        """The float parameters, which :meth:`training` trains."""
        found = leaves([v for v in self._outputs if v.owner is not None])
        return [v for v in found if isinstance(v, Shared) and v.type.is_float]

    def store(self) -> None:
        """Store the weights as they are now, in 8 bits."""
        for w, scales in self._plan.weights.items():
            value = _value(quantize(w, scales.value, dtype=self._plan.kind, axis=scales.axis))
            if w in self._codes:
                self._codes[w].set_value(value)
            else:
                name = f"{scales.name}.codes"
                self._codes[w] = shared(value, name=name, shape=value.shape)

    def __call__(self, *given: Variable) -> Any:
        """The outputs for these inputs, with weights stored in 8 bits."""
        return self._built(given, lambda w: self._codes[w])

    def training(self, *given: Variable) -> Any:
        """The outputs for these inputs, with weights in floats, and straight-through gradients."""
        return self._built(given, None)

    def function(self, **options: Any) -> Function:
        """The compiled function of the network's inputs."""
        return function(self.inputs, self(*self.inputs), **options)

    def _built(self, given: Sequence[Variable], codes: _Stored) -> Any:
        if len(given) != len(self.inputs):
            raise InputError(f"wanted {len(self.inputs)} inputs, got {len(given)}")
        found = self._plan.apply(self._outputs, dict(zip(self.inputs, given)), codes)
        return found[0] if self._single else found


@dataclass(frozen=True)
class _Scales:
    """Scales of weights: their values, the axis along which they vary, the parameter's name."""

    name: str
    value: Array
    axis: int | None


@dataclass
class _Plan:
    """What becomes 8 bits: products, scales of weights, scales and zero points of values."""

    kind: str
    out: str
    layers: list[Layer]
    products: set[Apply]
    weights: dict[Variable, _Scales]
    values: dict[Variable, tuple[np.float32, int]]

    def apply(
        self, outputs: Sequence[Variable], replaced: Mapping[Variable, Variable],
        codes: _Stored,
    ) -> list[Variable]:  # fmt: skip
        """``outputs`` in 8 bits. ``codes`` gives stored weights; None: rounded in each call."""
        plain: dict[Variable, Variable] = dict(replaced)
        rounded: dict[Variable, Variable] = {}

        def of(v: Variable) -> Variable:
            """A value as its readers see it."""
            now = plain.setdefault(v, v)
            if v not in self.values:
                return now
            if v not in rounded:
                scale, zero = self.values[v]
                point = None if self.kind in FLOAT8 else zero
                made = quantize(now, scale, point, self.kind)
                rounded[v] = dequantize(made, scale, point, self.kind, out=now.type.dtype)
            return rounded[v]

        for node in toposort(list(outputs), blockers=replaced):
            inputs = [of(v) for v in node.inputs]
            if node in self.products and node.inputs[1] in self.weights:
                inputs[1] = self._weights(node.inputs[1], codes)
            made = node.op.make_node(*inputs)
            for old, new in zip(node.outputs, made.outputs, strict=True):
                plain.setdefault(old, new)
        return [plain.get(v, v) for v in outputs]

    def _weights(self, w: Variable, codes: _Stored) -> Variable:
        s = self.weights[w]
        made = codes(w) if codes else quantize(w, s.value, dtype=self.kind, axis=s.axis)
        return dequantize(made, s.value, None, self.kind, axis=s.axis, out=w.type.dtype)


# -- what is quantised ----------------------------------------------------------------------------


def quantize_network(
    what: Any, data: Iterable[Any], *, inputs: Sequence[Variable] | None = None,
    kind: str = "int8", method: str = "minmax", percentile: float = 99.99,
    skip: Sequence[str] = (), per_channel: bool = True,
) -> Quantized:  # fmt: skip
    """A trained network with its convolutions and matrix products in 8 bits (``nn.quantize``).

    ``what`` is a module (evaluated at ``inputs``), a compiled function, or an expression or a list
    of them with its ``inputs``. ``data`` are batches: an array each, or a tuple of one for each
    input. From the ranges that values take on them follow their scales, by ``method``: ``minmax``,
    ``percentile`` (of both ends) or ``entropy`` (Migacz 2017). Values get a zero point, weights
    none; with ``per_channel`` weights have a scale for each output channel. Batch normalisation
    behind a convolution is folded into it first. ``kind`` is ``int8``, ``float8_e4m3fn`` or
    ``float8_e5m2``; float8 has one scale for each operand. ``skip`` are patterns of names of
    weights (``"*head*"``) whose products stay floats.

    The result's expression has ``quantize`` and ``dequantize`` around each product, which the
    compiler makes one op of 8 bits, and it can be written by ``symdnn.save`` and
    ``symdnn.onnx.save``. Raises :class:`~symdnn.errors.OptionError` for unknown options, and
    :class:`~symdnn.errors.InputError` without data or without a product. (Krishnamoorthi 2018,
    "Quantizing deep convolutional networks for efficient inference".)

    >>> from symdnn import nn
    >>> import symdnn.tensor as T
    >>> x = T.tensor("float32", ("batch", 8), name="x")
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> batches = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    >>> q = nn.quantize(net, batches, inputs=[x])
    >>> len(q.layers), q.function()(batches[0]).shape
    (2, (5, 4))
    """
    if kind not in _KINDS:
        raise OptionError(f"nn.quantize: kind {kind!r}: wanted one of {', '.join(_KINDS)}")
    outputs, given, single = _expressions(what, inputs)
    outputs = _without_batch_norm(outputs)
    products = [n for n in toposort(outputs) if _is_product(n) and not _skipped(n, skip)]
    if not products:
        raise InputError("nn.quantize: no convolution or matrix product of float32 to quantise")
    left, right = _observed(products)
    left.update({v: None for v in _addends(outputs, products, {*left, *right})})
    seen = _ranges(given, [*left, *right], data)
    values = {v: parameters(s, kind, method, percentile, v in right) for v, s in seen.items()}
    plan = _Plan(kind, "float32", [], set(products), {}, values)
    for node in products:
        _add(plan, node, per_channel)
    return Quantized(given, outputs, plan, single)


def _expressions(
    what: Any, inputs: Sequence[Variable] | None
) -> tuple[list[Variable], list[Variable], bool]:
    """Outputs, inputs, and whether there is one output."""
    if isinstance(what, Function):
        s = what.signature
        found = list(s.sources[: len(s.sources) - len(s.updated)])
        declared = [d.variable for d in s.declared if d.variable not in s.states]
        return found, declared, len(found) == 1
    if isinstance(what, Module):
        if inputs is None:
            raise InputError("nn.quantize: a module wants inputs=[a variable for each argument]")
        modes = [(m, m.training) for _, m in what.named_modules()]
        try:
            made: Any = what.evaluate()(*inputs)
        finally:
            for m, mode in modes:
                m.training = mode
        what = made
    single = isinstance(what, Variable)
    found = [what] if single else list(what)
    if inputs is None:
        free = graph_inputs(found)
        inputs = [v for v in reversed(free) if not isinstance(v, Constant | Shared)]
    return found, list(inputs), single


def _is_product(node: Apply) -> bool:
    floats = all(getattr(v.type, "dtype", "") == "float32" for v in node.inputs[:2])
    matrices = all(v.type.ndim >= 2 for v in node.inputs[:2] if floats)
    return isinstance(node.op, Conv | Dot | BatchedDot) and floats and matrices


def _names(v: Variable) -> list[str]:
    return [u.name for u in leaves([v]) if isinstance(u, Shared) and u.name]


def _name(w: Variable) -> str:
    """The name of the parameter of which weights are computed: the largest one."""
    named = [u for u in leaves([w]) if isinstance(u, Shared) and u.name]
    largest = max(named, key=lambda u: np.size(u.get_value(borrow=True)), default=None)
    return "" if largest is None else str(largest.name)


def _skipped(node: Apply, skip: Sequence[str]) -> bool:
    names = [name for v in node.inputs[:2] if _is_known(v) for name in _names(v)]
    return any(fnmatch(name, pattern) for name in names for pattern in skip)


def _is_known(v: Variable) -> bool:
    """Whether a value depends on parameters and constants alone."""
    return all(isinstance(u, Constant | Shared) for u in leaves([v]))


#: Ops whose result has the numbers of their first input.
_VIEWS = (DimShuffle, Reshape, SpecifyType, ForgetShape)


def _source(v: Variable) -> Variable:
    """The value that is rounded for a product's operand: the one before its views."""
    while v.owner is not None and isinstance(v.owner.op, _VIEWS):
        v = v.owner.inputs[0]
    return v


def _observed(products: Sequence[Apply]) -> tuple[dict[Variable, None], dict[Variable, None]]:
    """Values that are rounded: those with a zero point, and right operands, which have none."""
    left: dict[Variable, None] = {}
    right: dict[Variable, None] = {}
    for node in products:
        x, w = node.inputs[:2]
        left.setdefault(_source(x))
        if not _is_known(w):
            right.setdefault(_source(w))
    return {v: None for v in left if v not in right}, right


def _addends(
    outputs: Sequence[Variable], products: Sequence[Apply], known: set[Variable]
) -> list[Variable]:
    """Of sums of two products' values, which a quantised one follows, the second operand.

    Then the first product adds its codes and rounds the sum, and no float value is between.
    """
    made = {n.outputs[0] for n in products}

    def is_product(v: Variable) -> bool:
        if v in made:
            return True
        parts = v.owner.inputs if v.owner is not None and isinstance(v.owner.op, Add) else []
        return any(p in made for p in parts) and any(map(_is_known, parts))

    found = []
    for node in toposort(list(outputs)):
        if isinstance(node.op, Relu) and node.outputs[0] in known:
            added = node.inputs[0].owner
            if added is None or not isinstance(added.op, Add):
                continue
            a, b = added.inputs
            if is_product(a) and is_product(b) and not {a, b} & known:
                found.append(b)
    return found


def _ranges(
    inputs: Sequence[Variable], values: Sequence[Variable], data: Iterable[Any]
) -> dict[Variable, Observer]:
    """What the values are on batches of data."""
    run = function(list(inputs), list(values), on_unused_input="ignore")
    seen = {v: Observer(i) for i, v in enumerate(values)}
    batches = 0
    for batch in data:
        given = batch if isinstance(batch, tuple | list) else (batch,)
        for v, value in zip(values, run(*given), strict=True):
            seen[v].see(np.asarray(value))
        batches += 1
    if not batches:
        raise InputError("nn.quantize: no batch of data to find ranges from")
    return seen


def _add(plan: _Plan, node: Apply, per_channel: bool) -> None:
    """Enter a product, and the scales of its weights."""
    x, w = node.inputs[:2]
    name = _name(w) if _is_known(w) else ""
    scales = np.zeros((), np.float32)
    if _is_known(w):
        one = plan.kind in FLOAT8 or not per_channel or isinstance(node.op, BatchedDot)
        axis = None if one else 0 if isinstance(node.op, Conv) else w.type.ndim - 1
        scales = channel_scales(_value(w), axis, plan.kind)
        plan.weights[w] = _Scales(name or "weights", scales, axis)
    scale, zero = plan.values[_source(x)]
    plan.layers.append(Layer(name, type(node.op).__name__, float(scale), zero, scales))


def _value(v: Variable) -> Array:
    return np.asarray(evaluate([v], {})[0])


# -- batch normalisation --------------------------------------------------------------------------


def _without_batch_norm(outputs: Sequence[Variable]) -> list[Variable]:
    """Expressions with batch normalisation folded into the convolution before it."""
    instead: dict[Variable, Variable] = {}
    for node in toposort(list(outputs)):
        inputs = [instead.get(v, v) for v in node.inputs]
        if isinstance(node.op, BatchNormInference):
            folded = _folded(node, inputs)
            if folded is not None:
                instead[node.outputs[0]] = folded
                continue
        if any(a is not b for a, b in zip(inputs, node.inputs)):
            instead.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))
    return [instead.get(v, v) for v in outputs]


def _folded(node: Apply, inputs: Sequence[Variable]) -> Variable | None:
    """A normalised convolution as one with other weights and a bias; None for another value."""
    x, gamma, beta, mean, var = inputs
    op: Any = node.op
    bias: Variable | None = None
    made = x.owner
    if made is not None and isinstance(made.op, Add):
        pair = [v for v in made.inputs if v.owner is not None and isinstance(v.owner.op, Conv)]
        if len(pair) == 1:
            bias = next(v for v in made.inputs if v is not pair[0])
            made = pair[0].owner
    if made is None or not isinstance(made.op, Conv) or not all(map(_is_known, inputs[1:])):
        return None
    if tuple(op.axes) != (0, *range(2, x.type.ndim)) or (bias is not None and not _is_known(bias)):
        return None
    factor = gamma / (var + np.asarray(op.epsilon, var.type.numpy)).sqrt()
    w = made.inputs[1] * factor.dimshuffle(1, 0, *range(2, x.type.ndim))
    shift = beta - mean * factor if bias is None else beta + (bias - mean) * factor
    y: Variable = made.op(made.inputs[0], w)
    return y + shift
