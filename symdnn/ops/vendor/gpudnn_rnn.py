"""cuDNN's recurrent networks, dropout and CTC loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable, OptionError, TypeMismatch
from symdnn.graph.op import Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.target import Version
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.nn.ctc import CTCLoss
from symdnn.ops.nn.dropout import Dropout, DropoutGrad, scaled_where
from symdnn.ops.nn.rnn import RNNForward, RNNGrad, rnn_with_reserve
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.random.random import STATE_TYPE, check_state
from symdnn.ops.vendor.gpudnn_base import DnnBase

__all__ = [
    "DROPOUT_RESERVE", "GRADIENT_RESERVE", "GpuDnnCTCLoss", "GpuDnnDropoutGrad", "GpuDnnDropoutOp",
    "GpuDnnRNNBase", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights", "GpuDnnRNNOp",
]  # fmt: skip

#: The RNN's reserve after the gradient of the data has been written into it.
GRADIENT_RESERVE = OpaqueType("rnn_gradient_reserve")
DROPOUT_RESERVE = OpaqueType("dropout_reserve")


class _WithReserve(DnnBase):
    """Base of ops that exchange a reserve which only cuDNN can read: no neutral op replaces one."""

    abstract: ClassVar[bool] = True

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        return None


# -- recurrent networks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuDnnRNNBase(DnnBase):
    """Base of the three; the fields are those of :class:`~symdnn.ops.nn.rnn.RNNForward`."""

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    since: ClassVar[Mapping[str, tuple[str, Version]]] = {"bfloat16": ("cudnn", (9, 13))}
    rnn_mode: str
    direction_mode: str = "unidirectional"
    hidden_size: int = field(default=1, kw_only=True)
    num_layers: int = field(default=1, kw_only=True)
    input_mode: str = field(default="linear", kw_only=True)
    dropout: float = field(default=0.0, kw_only=True)
    lengths: bool = field(default=False, kw_only=True)

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state (LSTM)."""
        return self.rnn_mode == "lstm"

    @property
    def lengths_index(self) -> int | None:
        """The index of the input with the lengths; None without them."""
        return 3 + self.has_cell if self.lengths else None

    @property
    def host_values(self) -> tuple[int, ...]:
        """cuDNN reads the sequence lengths on the host."""
        return () if self.lengths_index is None else (self.lengths_index,)


@dataclass(frozen=True)
class GpuDnnRNNOp(GpuDnnRNNBase):
    """(y, hy, [cy], [next state], reserve) of (w, x, hx, [cx], [lengths], [state]).

    With dropout between layers the masks are cuDNN's, drawn from the state's key and counter.
    Without ``keeps_reserve`` it is cuDNN's inference mode. (``cudnnRNNForward``)
    As in Theano: ``GpuDnnRNNOp(rnn_mode, direction_mode)(desc, w, x, hx, cx)`` with a descriptor of
    ``_RNNDescriptor``; the result is (reserve, y, hy, [cy]).
    """

    neutral_type: ClassVar[type[Op]] = RNNForward
    keeps_reserve: bool = field(default=True, kw_only=True)

    @property
    def private_draws(self) -> bool:  # type: ignore[override]
        """Dropout acts between layers, while training."""
        return bool(self.dropout) and self.num_layers > 1 and self.keeps_reserve

    def __call__(
        self, *arguments: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Any:
        """Apply to the inputs, or as in Theano to (desc, w, x, hx, [cx])."""
        if arguments and isinstance(getattr(arguments[0], "shape", None), RNNShape):
            return self._by_hand(*arguments, hints=hints, **words)
        return super().__call__(*arguments, hints=hints, name=name)

    def _by_hand(
        self, desc: Any, w: Any, x: Any, hx: Any, cx: Any = None, *, hints: Hints | None
    ) -> list[Variable]:
        s: RNNShape = desc.shape
        for what in ("rnn_mode", "direction_mode"):
            mine, its = getattr(self, what), getattr(s, what)
            if mine != its:
                raise OptionError(f"GpuDnnRNNOp: {what}={mine!r}, but the descriptor's is {its!r}")
        op = replace(
            self, hidden_size=s.hidden_size, num_layers=s.num_layers, input_mode=s.input_mode,
            dropout=desc.dropout.dropout,
        )  # fmt: skip
        forward, stream = op.neutral(), desc.block.stream
        assert isinstance(forward, RNNForward)
        *outputs, reserve = rnn_with_reserve(forward, op, w, x, hx, cx, None, stream, hints=hints)
        return [reserve, *outputs]

    @property
    def host_values(self) -> tuple[int, ...]:
        forward = self.neutral()
        assert isinstance(forward, RNNForward)
        state = (3 + self.has_cell + self.lengths,) if forward.random else ()
        return (*super().host_values, *state)


class _RNNGradient(_WithReserve, GpuDnnRNNBase):
    """Base of the two, which together are the neutral gradient; its reserve joins them."""

    abstract: ClassVar[bool] = True
    neutral_type: ClassVar[type[Op]] = RNNGrad

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"{self}: second derivatives of an RNN block do not exist")


class GpuDnnRNNGradInputs(_RNNGradient):
    """(dx, dhx, [dcx], reserve) of (w, x, hx, [cx], [lengths], y, dy, dhy, [dcy], reserve).

    It adds data for :class:`GpuDnnRNNGradWeights` to the reserve. (``cudnnRNNBackwardData_v8``)
    """

    def infer(self, *inputs: TensorType) -> Any:
        return (*self.neutral().output_types(inputs)[1:], GRADIENT_RESERVE)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = self.neutral().shapes(types, shapes, host)
        return None if found is None else [*found[1:], ()]

    def reference(self, *inputs: Array) -> Any:
        """The results, with the gradient of the weights as the reserve."""
        dw, *rest = self.neutral().compute(*inputs)
        return (*rest, dw)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        # The reserve is the last output, and the last input.
        return {2 + self.has_cell: (6 + 2 * self.has_cell + self.lengths,)}


class GpuDnnRNNGradWeights(_RNNGradient):
    """dw of (w, x, hx, [lengths], y, reserve of GradInputs). (``cudnnRNNBackwardWeights_v8``)"""

    @property
    def lengths_index(self) -> int | None:
        return 3 if self.lengths else None

    def infer(self, *inputs: Any) -> Any:
        if len(inputs) != 5 + self.lengths or inputs[-1] != GRADIENT_RESERVE:
            wanted = "w, x, hx, [lengths], y and the reserve of GpuDnnRNNGradInputs"
            raise TypeMismatch(self, wanted, list(inputs))
        return inputs[0]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[0])]

    def reference(self, *inputs: Array) -> Any:
        return inputs[-1]

    def results(self, node: Apply) -> Any:
        return node.outputs[0]


# -- dropout --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuDnnDropoutOp(_WithReserve):
    """(y, next state, reserve) of (state, x): dropout whose mask is cuDNN's opaque reserve.

    (``cudnnDropoutForward``)
    """

    neutral_type: ClassVar[type[Op]] = Dropout
    read_on_host: ClassVar[tuple[int, ...]] = (0,)  # cuDNN is seeded on the host
    private_draws: ClassVar[bool] = True
    inplace: bool = False
    dropout: float = field(default=0.0, kw_only=True)

    def infer(self, *inputs: TensorType) -> Any:
        state, x = inputs
        check_state(self, state)
        if not isinstance(x, TensorType) or not x.is_float:
            raise TypeMismatch(self, "a float tensor", x)
        return x, STATE_TYPE, DROPOUT_RESERVE

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[1]), (2,), ()]

    def reference(self, *inputs: Array) -> Any:
        y, mask, state = self.neutral().compute(*inputs, np.asarray(self.dropout, np.float32))
        return y, state, mask

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        dy = cotangents[0]
        grad = GpuDnnDropoutGrad(dropout=self.dropout)
        return [None, None if dy is None else grad(dy, outputs[2])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None


@dataclass(frozen=True)
class GpuDnnDropoutGrad(_WithReserve):
    """The gradient of x, of (dy, reserve). (``cudnnDropoutBackward``)"""

    linear_in_first: ClassVar[bool] = True
    neutral_type: ClassVar[type[Op]] = DropoutGrad
    inplace: bool = False
    dropout: float = field(default=0.0, kw_only=True)

    def infer(self, *inputs: Any) -> Any:
        dy, reserve = inputs
        if reserve != DROPOUT_RESERVE:
            raise TypeMismatch(self, "the reserve of GpuDnnDropoutOp", reserve)
        return dy

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[0])]

    def reference(self, *inputs: Array) -> Any:
        dy, mask = inputs
        return scaled_where(mask, dy, self.dropout, True)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [self(cotangents[0], inputs[1]), None]


# -- CTC ------------------------------------------------------------------------------------------


class GpuDnnCTCLoss(DnnBase):
    """(costs, gradients) of (activations, labels, input lengths). (``cudnnCTCLoss``)"""

    neutral_type: ClassVar[type[Op]] = CTCLoss
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    read_on_host: ClassVar[tuple[int, ...]] = (1, 2)  # labels and lengths
