"""Recurrent networks of several layers as one op, and the users' class :class:`RNNBlock`.

The cells are ::

    rnn_relu, rnn_tanh   h' = f(W x + b_W + R h + b_R)
    lstm                 i, f, o = sigmoid(..), g = tanh(..); c' = f c + i g; h' = o tanh(c')
    gru                  r, z = sigmoid(..); n = tanh(W x + b_W + r (R h + b_R));
                         h' = (1 - z) n + z h

as in ``cudnnRNNForward``; :mod:`symdnn.ops.nn.rnn_params` has the layout of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import (
    IndexOutOfRange,
    NonDifferentiable,
    OptionError,
    TypeMismatch,
)
from symdnn.graph.backprop import backprop, zeros_for
from symdnn.graph.dims import Shape, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import OpaqueType, TensorType, Type, elements
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import zeros
from symdnn.ops.array.join import join
from symdnn.ops.core.composed import jvp_of_expressions, vjp_of_expressions, written_out
from symdnn.ops.core.dtype import widened
from symdnn.ops.core.lanes import joined, lanes_of, on_folded, on_parts, sizes_of, stacked
from symdnn.ops.nn.rnn_params import RNNParameters, RNNShape
from symdnn.ops.nn.rnn_reference import RNNReserve, drop_masks, rnn_backward, rnn_forward
from symdnn.ops.random.random import STATE_TYPE, check_state
from symdnn.ops.random.random_stream import RandomStream
from symdnn.ops.written_out.rnn import for_each_lane, lanes_in_one_loop, rnn_loop, rnn_masks

RESERVE = OpaqueType("rnn_reserve")


@dataclass(frozen=True)
class RNNOp(MultiOp):
    """Base of the forward and the gradient op.

    ``lengths`` says whether an int vector of sequence lengths is among the inputs, ``dropout`` is
    the rate between layers (above 0, a random state is an input of the forward op).
    """

    abstract: ClassVar[bool] = True
    #: How often it multiplies by all weights in each step of each example.
    passes: ClassVar[float] = 1.0
    rnn_mode: str
    hidden_size: int
    num_layers: int
    input_mode: str = "linear"
    direction_mode: str = "unidirectional"
    dropout: float = 0.0
    lengths: bool = False

    @property
    def layout(self) -> RNNShape:
        """The layout of the parameters."""
        return RNNShape(
            self.rnn_mode, self.hidden_size, self.num_layers, self.input_mode, self.direction_mode
        )

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state."""
        return self.rnn_mode == "lstm"

    def take(self, inputs: Sequence[Any], *more: str) -> dict[str, Any]:
        """The inputs by name: w, x, hx, (cx), (lengths), then ``more``."""
        names = ["w", "x", "hx", *self.optional(), *more]
        if len(names) != len(inputs):
            raise TypeMismatch(self, f"the inputs {', '.join(names)}", list(inputs))
        return dict(zip(names, inputs, strict=True))

    def optional(self) -> list[str]:
        """Names of the inputs after hx that this op has."""
        return ["cx"] * self.has_cell + ["lengths"] * self.lengths

    def check_types(self, given: dict[str, Any]) -> None:
        """Float w (a vector), x (time, batch, input), hx and cx (layers, batch, hidden)."""
        w = given["w"]
        for name, ndim in (("w", 1), ("x", 3), ("hx", 3), ("cx", 3)):
            t = given.get(name, given["x"])
            ok = isinstance(t, TensorType) and t.is_float and t.dtype == w.dtype
            if name in given and not (ok and t.ndim == ndim):
                what = f"{name} a {ndim}-dimensional float tensor of the dtype of w ({w.dtype})"
                raise TypeMismatch(self, what, t)
        if self.lengths and (given["lengths"].ndim != 1 or not given["lengths"].is_integer):
            raise TypeMismatch(self, "lengths an integer vector", given["lengths"])

    def check_shapes(self, shapes: dict[str, Shape]) -> None:
        """Raise :class:`ShapeMismatch` if sizes do not fit each other."""
        layout, (_, batch, features) = self.layout, shapes["x"]
        if self.input_mode == "skip":
            want = f"{self.hidden_size} input features, the hidden size (input_mode='skip')"
            same_dim(self, (self.hidden_size, features), want, tuple(shapes["x"]))
        size, (given,) = layout.size(features), shapes["w"]
        want = f"a parameter vector of {size} for {features} inputs"
        same_dim(self, (size, given), want, (given,), layout.advice(size, given))
        state = (self.num_layers * layout.directions, batch, self.hidden_size)
        for name in ("hx", "cx"):
            for d, n in zip(state, shapes.get(name, state), strict=True):
                same_dim(self, (d, n), f"{name} of shape {state}", tuple(shapes.get(name, ())))
        if self.lengths:
            pair = (batch, shapes["lengths"][0])
            same_dim(self, pair, "one length for each sequence", tuple(shapes["lengths"]))

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        w, x = inputs[:2]
        return self.passes * elements(w) * elements(x) / max(x.shape[-1] or 1, 1)

    def checked_lengths(self, given: dict[str, Any]) -> Array | None:
        """The lengths, each within the number of steps; None without them."""
        lengths = given.get("lengths")
        steps = given["x"].shape[0]
        if lengths is not None and ((lengths < 0) | (lengths > steps)).any():
            i = int(np.argmax((lengths < 0) | (lengths > steps)))
            raise IndexOutOfRange(
                f"{self}: lengths[{i}] = {lengths[i]} is not within the {steps} time steps of x"
            )
        return lengths


@dataclass(frozen=True)
class RNNForward(RNNOp):
    """(y, hy, [cy], [next state], reserve) of (w, x, hx, [cx], [lengths], [state]).

    x is (time, batch, input), hx and cx (layers * directions, batch, hidden), y (time, batch,
    directions * hidden), forward direction first. With lengths, y is 0 after each sequence's end,
    hy and cy are its last states, and the backward direction starts at its last element.
    ``reserve`` is data for :class:`RNNGrad`. Without ``keeps_reserve`` there is none: rewriting
    chooses this form for inference, if no gradient reads the reserve. With ``rounds_states`` a
    kernel may round the state to bfloat16 where it is multiplied, as other products in bfloat16 do.
    """

    keeps_reserve: bool = True
    rounds_states: bool = False

    @property
    def random(self) -> bool:
        """Whether a random state is read and advanced."""
        return self.dropout > 0 and self.num_layers > 1

    @property
    def random_state(self) -> int | None:
        return 3 + len(self.optional()) if self.random else None

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        given = self.take(inputs, *["state"] * self.random)
        self.check_types(given)
        if self.random:
            check_state(self, given["state"])
        x = given["x"]
        batch = next((t.shape[1] for t in (x, given["hx"]) if t.shape[1] is not None), None)
        y = x.with_shape((x.shape[0], batch, self.layout.output_size))
        depth = self.num_layers * self.layout.directions
        hy = x.with_shape((depth, batch, self.hidden_size))
        states = (hy, *[hy] * self.has_cell, *[STATE_TYPE] * self.random)
        return (y, *states, *[RESERVE] * self.keeps_reserve)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        given = self.take(shapes, *["state"] * self.random)
        self.check_shapes(given)
        steps, batch, _ = given["x"]
        y = (steps, batch, self.layout.output_size)
        hy = (self.num_layers * self.layout.directions, batch, self.hidden_size)
        return [y, hy, *[hy] * self.has_cell, *[(2,)] * self.random, *[()] * self.keeps_reserve]

    def reference(self, *inputs: Array) -> Any:
        given = self.take(inputs, *["state"] * self.random)
        self.check_shapes({k: a.shape for k, a in given.items()})
        w, x, hx, cx = widened(given["w"], given["x"], given["hx"], given.get("cx"))
        masks: list[Any] = []
        more: list[Any] = []
        if self.random:
            masks, state = drop_masks(self.layout, self.dropout, x, given["state"])
            more = [state]
        lengths = self.checked_lengths(given)
        y, hy, cy, reserve = rnn_forward(self.layout, w, x, hx, cx, lengths, masks)
        out = [a.astype(given["x"].dtype, copy=False) for a in (y, hy, cy) if a is not None]
        return (*out, *more, *[reserve] * self.keeps_reserve)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        if not self.keeps_reserve:
            outputs = replace(self, keeps_reserve=True)(*inputs)
        states = 2 + self.has_cell
        given = self.take(inputs, *["state"] * self.random)
        dy, *rest = zeros_for(outputs[:states], cotangents[:states])
        fields = (self.rnn_mode, self.hidden_size, self.num_layers, self.input_mode)
        op = RNNGrad(*fields, self.direction_mode, self.dropout, self.lengths)
        first = [given[n] for n in ("w", "x", "hx", *self.optional())]
        dw, dx, *dstates = op(*first, outputs[0], dy, *rest, outputs[-1])
        return [dw, dx, *dstates, *[None] * (self.lengths + self.random)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        count = len(inputs) - self.random
        masks = [_masks_of(self, inputs[1], inputs[-1])] if self.random else []
        with written_out(self, "a loop"):
            found = jvp_of_expressions(
                lambda *v: _loop(self, v[:count], v[count:]),
                [*inputs[:count], *masks],
                [*tangents[:count], *[None] * len(masks)],
            )
        return [*found, *[None] * (len(outputs) - len(found))]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        if self.random:
            return None  # the numbers that a lane draws depend on its state and on all of x
        if axes[0] is not None:
            return self._with_own_weights(inputs, axes)
        places = [None, 1, 1, *[1] * self.has_cell, *[0] * self.lengths]
        outs = [1, 1, *[1] * self.has_cell, *[None] * self.keeps_reserve]
        return on_folded(self, inputs, axes, places, outs)

    def _with_own_weights(self, inputs: Vars, axes: Axes) -> Batched:
        loop, count = partial(_loop, self, masks=()), 2 + self.has_cell
        found = lanes_in_one_loop(loop, self.hidden_size, inputs, axes, count)
        if found and self.keeps_reserve:  # loops read none: that of the first lane
            first = [v if a is None else v[0] for v, a in zip(inputs, axes, strict=True)]
            found.append(self.make_node(*first).outputs[-1])
        return (found, [0] * len(found)) if found else None


@dataclass(frozen=True)
class RNNGrad(RNNOp):
    """(dw, dx, dhx, [dcx]) of (w, x, hx, [cx], [lengths], y, dy, dhy, [dcy], reserve).

    With ``lanes`` there are gradients of w for parts of the batch: all inputs but w and the reserve
    have the batch as (lanes, examples), and dw has an entry for each lane.
    ``cudnnRNNBackwardData_v8`` and ``cudnnRNNBackwardWeights_v8`` together.
    """

    passes: ClassVar[float] = 2.0
    lanes: bool = False

    def _more(self) -> list[str]:
        return ["y", "dy", "dhy", *["dcy"] * self.has_cell, "reserve"]

    def lane_places(self) -> list[int | None]:
        """The dimension of lanes of each input; None of those without."""
        names = ["w", "x", "hx", *self.optional(), *self._more()]
        own = {"w": None, "reserve": None, "lengths": 0}
        return [own.get(n, 1) for n in names]

    def _of_lane(self, given: Sequence[Any], cut: Callable[[Any, int], Any]) -> dict[str, Any]:
        """The inputs by name, those with a dimension ``i`` of lanes as ``cut(entry, i)``."""
        places = self.lane_places() if self.lanes else [None] * len(given)
        named = self.take(given, *self._more())
        return {
            n: a if p is None else cut(a, p)
            for (n, a), p in zip(named.items(), places, strict=True)
        }

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        given = self._of_lane(inputs, lambda t, i: t.with_shape(_cut(t.shape, i)))
        self.check_types(given)
        if given["reserve"] != RESERVE:
            raise TypeMismatch(self, "the reserve of RNNForward", given["reserve"])
        w, *others = inputs[: 3 + self.has_cell]
        return (w.with_shape((others[0].shape[1], *w.shape)) if self.lanes else w, *others)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self.check_shapes(self._of_lane(shapes, _cut))
        w, x, *others = (tuple(s) for s in shapes[: 3 + self.has_cell])
        return [(*x[1 : 1 + self.lanes], *w), x, *others]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        given = self._of_lane(inputs, joined)
        names = ("w", "x", "hx", "cx", "dy", "dhy", "dcy")
        w, x, hx, cx, dy, dhy, dcy = widened(*(given.get(n) for n in names))
        lengths, reserve = self.checked_lengths(given), given["reserve"]
        if not isinstance(reserve, RNNReserve):  # a library's, for its own gradient
            *_, reserve = rnn_forward(self.layout, w, x, hx, cx, lengths, ())
        lanes = inputs[1].shape[1] if self.lanes else None
        found = rnn_backward(self.layout, w, x, lengths, dy, dhy, dcy, reserve, lanes)
        dw, *others = (a.astype(inputs[1].dtype, copy=False) for a in found if a is not None)
        return (dw, *(a.reshape(like.shape) for a, like in zip(others, inputs[1:])))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        """By the loop that the network stands for; y and the reserve follow from the others."""
        masks = _masks_behind(self, inputs)
        count = len(inputs)

        def expressions(*given: Variable) -> list[Variable]:
            return self.by_loop(given[:count], given[count:])

        with written_out(self, "the gradient of a loop"):
            found = vjp_of_expressions(expressions, [*inputs, *masks], cotangents)
        return found[:count]

    def by_loop(self, inputs: Vars, masks: Vars = ()) -> list[Variable]:
        """The gradients of the loop that the network stands for."""
        if self.lanes:
            one, places = replace(self, lanes=False), self.lane_places()
            return for_each_lane(one.by_loop, inputs, places, [0, 1, 1, 1])
        given = self.take(inputs, *self._more())
        first = [given[n] for n in ("w", "x", "hx", *self.optional())]
        outs = _loop(self, first, masks)
        cotangents = [given[n] for n in ("dy", "dhy", *["dcy"] * self.has_cell)]
        wrt = [given[n] for n in ("w", "x", "hx", *["cx"] * self.has_cell)]
        found = backprop(dict(zip(outs, cotangents, strict=True)), wrt)
        return [v.zeros_like() if g is None else g for v, g in zip(wrt, found)]

    def without_weights(self, inputs: Vars) -> list[Variable]:
        """The gradients of the states and of x alone, of all lanes at once."""
        flat = [*self._of_lane(inputs, joined).values()]
        found = replace(self, lanes=False)(*flat)[1:]
        return [g.reshape(tuple(sizes_of(v))) for g, v in zip(found, inputs[1:])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        """Lanes that share the parameters, which get a gradient of each, or small ones."""
        if self.dropout > 0 and self.num_layers > 1:
            return None
        if axes[0] is not None:
            places, count = [*axes[:-1], None], 3 + self.has_cell
            found = lanes_in_one_loop(self.by_loop, self.hidden_size, inputs, places, count)
            return (found, [0] * count) if found else None
        if axes[-1] is None:
            inputs = [*inputs[:-1], self._reserve(inputs, axes)]
        op = replace(self, lanes=True)
        return on_parts(op, inputs, axes, self.lane_places(), [0, 1, 1, 1], not self.lanes)

    def _reserve(self, inputs: Vars, axes: Axes) -> Variable:
        """The reserve of a forward pass of each lane, where the lanes share one."""
        lanes, count = lanes_of(inputs, axes), 3 + len(self.optional())
        given: list[Variable] = [inputs[0]]
        for v, a, p in list(zip(inputs, axes, self.lane_places()))[1:count]:
            whole = stacked(v, a, lanes)
            given.append(joined(whole, int(p or 0) + 1) if self.lanes else whole)
        fields = {f.name: getattr(self, f.name) for f in dataclass_fields(RNNOp)}
        made = RNNForward(**fields).batch(given, [None, *[0] * (count - 1)])
        assert made is not None
        return made[0][-1]


def _cut(shape: Shape, i: int) -> Shape:
    """The shape of a lane, whose lanes are dimension ``i``."""
    return (*shape[:i], *shape[i + 1 :])


def _loop(op: RNNOp, inputs: Vars, masks: Vars) -> list[Variable]:
    return rnn_loop(op.layout, op.take(inputs), masks[0] if masks else None)


def _masks_behind(op: RNNGrad, inputs: Vars) -> list[Variable]:
    """The dropout masks of the forward op that made the reserve; none without dropout."""
    if not (op.dropout > 0 and op.num_layers > 1):
        return []
    made = inputs[-1].owner
    if made is None or not isinstance(made.op, RNNForward):
        raise NonDifferentiable(
            f"{op}: its dropout's random state is needed, but the reserve comes from {made}. Take "
            "the second derivative where the network is applied, not inside of a loop over it"
        )
    return [_masks_of(made.op, made.inputs[1], made.inputs[-1])]


def _masks_of(op: RNNOp, x: Variable, state: Variable) -> Variable:
    """(layers - 1, time, batch, features): what the layers' inputs are multiplied with."""
    return rnn_masks(op.layout, op.dropout, x, state)[0]


def rnn_with_reserve(
    op: RNNForward,
    applied: Any,
    w: TensorLike,
    x: TensorLike,
    hx: TensorLike,
    cx: TensorLike | None = None,
    lengths: TensorLike | None = None,
    stream: RandomStream | None = None,
    *,
    hints: Hints | None = None,
) -> list[Variable]:
    """[y, hy, [cy], reserve] of the op; ``applied`` is the op itself or its lowered form.

    Dropout, if any, draws from a new state of ``stream``. Raises ``TypeMismatch`` for ``cx``
    without an LSTM, and for an LSTM without ``cx``.
    """
    if (cx is not None) != op.has_cell:
        raise TypeMismatch(op, "cx for an LSTM, and only for it", "cx" if op.has_cell else cx)
    given = [w, x, hx, *([cx] if op.has_cell else []), *([lengths] if op.lengths else [])]
    variables = [as_variable(v) for v in given]
    state = None
    if op.random:
        stream = stream or RandomStream()
        state = stream.new_state()
        variables.append(state)
    outputs: Vars = applied(*variables, hints=hints)
    if state is not None and stream is not None:
        stream.register(state, outputs[-2])
    return [*outputs[: 2 + op.has_cell], outputs[-1]]


class RNNBlock(RNNParameters):
    """A recurrent network of several layers whose parameters are one flat vector.

    ``rnn_mode``: ``"rnn_relu"``, ``"rnn_tanh"``, ``"lstm"``, ``"gru"``; ``input_mode``:
    ``"linear"``, or ``"skip"`` (the input has the hidden size and is added to the gates without a
    matrix); ``direction_mode``: ``"unidirectional"``, ``"bidirectional"``. ``dropout`` is the rate
    between layers, drawn from ``stream`` (a :class:`RandomStream` or a seed). ``context_name`` is
    accepted for compatibility with Theano. The layout of the vector is cuDNN's
    (:mod:`symdnn.ops.nn.rnn_params`).

    Without ``bias`` the vector ends before the biases. ``proj_size``: an LSTM's state is a product
    of ``o tanh(c)`` with a matrix (proj_size, hidden_size); then the network is a loop over steps.
    """

    def __init__(
        self,
        dtype: DtypeLike,
        hidden_size: int,
        num_layers: int,
        rnn_mode: str,
        input_mode: str = "linear",
        direction_mode: str = "unidirectional",
        context_name: Any = None,
        *,
        dropout: float = 0.0,
        stream: Any = None,
        bias: bool = True,
        proj_size: int = 0,
    ) -> None:
        self.layout = RNNShape(
            rnn_mode, int(hidden_size), int(num_layers), input_mode, direction_mode,
            int(proj_size), bool(bias),
        )  # fmt: skip
        self.layout.check()
        if not 0 <= dropout <= 1:
            raise OptionError(f"dropout={dropout}; wanted a probability, 0 to 1")
        self.dtype = TensorType(dtype).dtype
        if not TensorType(self.dtype).is_float:
            raise TypeMismatch("RNNBlock", "a float dtype", dtype)
        self.dropout = float(dropout)
        self.stream = stream if isinstance(stream, RandomStream) else RandomStream(stream)

    def apply(
        self,
        w: TensorLike,
        x: TensorLike,
        hx: TensorLike,
        cx: TensorLike | None = None,
        *,
        lengths: TensorLike | None = None,
        train: bool = True,
        hints: Hints | None = None,
    ) -> list[Variable]:
        """[y, hy], or [y, hy, cy] for an LSTM.

        ``x`` is (time, batch, input); ``hx`` and ``cx`` are (layers * directions, batch, hidden).
        ``lengths`` (an integer vector, in any order) are the lengths of the sequences.
        ``train=False`` switches dropout off. Differentiable with respect to w, x, hx and cx.
        """
        s = self.layout
        rate = self.dropout if train else 0.0
        if s.proj_size:
            return self._projected(w, x, hx, cx, lengths, rate)
        fields = (s.rnn_mode, s.hidden_size, s.num_layers, s.input_mode, s.direction_mode)
        op = RNNForward(*fields, rate, lengths is not None)
        v = as_variable(w)
        if not s.biases:  # they are last in the vector, and 0
            full = replace(s, biases=True)
            none = zeros((s.num_layers * s.directions * full.bias_count,), v.type.dtype)
            v = join(0, v, none)
        made = rnn_with_reserve(op, op, v, x, hx, cx, lengths, self.stream, hints=hints)
        return made[:-1]

    def _projected(
        self, w: TensorLike, x: TensorLike, hx: TensorLike, cx: TensorLike | None,
        lengths: TensorLike | None, rate: float,
    ) -> list[Variable]:  # fmt: skip
        """[y, hy, cy] of an LSTM with projections, as a loop."""
        s = self.layout
        if cx is None:
            raise TypeMismatch("RNNBlock", "cx for an LSTM", cx)
        given = {"w": w, "x": x, "hx": hx, "cx": cx, "lengths": lengths}
        named = {n: as_variable(v) for n, v in given.items() if v is not None}
        masks = None
        if rate > 0 and s.num_layers > 1:
            masks = self.stream.draw(lambda state: rnn_masks(s, rate, named["x"], state))
        return rnn_loop(s, named, masks)


OPERATORS: dict[str, Any] = {}
