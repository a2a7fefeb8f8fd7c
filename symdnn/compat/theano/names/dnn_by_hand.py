"""cuDNN's ops of ``theano.gpuarray.dnn`` that are applied by hand with Theano's own arguments.

Their constructors and inputs differ from symdnn's, whose ops are instances of these classes.
"""

from __future__ import annotations

from typing import Any

from symdnn import tensor as T
from symdnn.compat.theano.names.class_names import OpName
from symdnn.gpu import dnn
from symdnn.graph.op import Op
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["GpuDnnDropoutOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights", "_make_dropout_desc"]


def _make_dropout_desc(dropout: Any, seed: Any, context_name: Any = None) -> tuple[Any, Any]:
    """``(descriptor, states)`` of dropout: its probability, and a shared variable of the draws."""
    made = dnn._DropoutDescriptor(context_name)(dropout, seed, context_name)
    return made, RandomStream(made.seed).new_state()


def _settings(desc: Any) -> dict[str, Any]:
    s = desc.shape
    return {"hidden_size": s.hidden_size, "num_layers": s.num_layers, "input_mode": s.input_mode,
            "dropout": desc.dropout.dropout}  # fmt: skip


class _Dropout:
    """``GpuDnnDropoutOp(inplace)(inp, descriptor, state)``: (y, reserve, next state)."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def __call__(self, inp: Any, descriptor: Any, state: Any) -> list[Variable]:
        y, new, reserve = dnn.GpuDnnDropoutOp(dropout=descriptor.dropout)(state, as_variable(inp))
        return [y, reserve, new]


class _GradInputs:
    """``GpuDnnRNNGradInputs(rnn_mode, grad_h, grad_c)``: (reserve, dx, dhx, [dcx]).

    The inputs are (desc, x, y, dy, dhy, dcy, w, hx, cx, reserve); ``dhy`` counts only with
    ``grad_h``, ``dcy`` only with ``grad_c``.
    """

    def __init__(self, rnn_mode: str, grad_h: bool, grad_c: bool) -> None:
        self.rnn_mode, self.grad_h, self.grad_c = rnn_mode, grad_h, grad_c

    def __call__(
        self, desc: Any, x: Any, y: Any, dy: Any, dhy: Any, dcy: Any, w: Any, hx: Any, cx: Any,
        reserve: Any,
    ) -> list[Variable]:  # fmt: skip
        op = dnn.GpuDnnRNNGradInputs(self.rnn_mode, desc.shape.direction_mode, **_settings(desc))
        states, grads = [hx], [dhy if self.grad_h else T.zeros_like(hx)]
        if op.has_cell:
            states.append(cx)
            grads.append(dcy if self.grad_c else T.zeros_like(cx))
        *found, after = op(w, x, *states, y, dy, *grads, reserve)
        return [after, *found]


class _GradWeights:
    """``GpuDnnRNNGradWeights()(desc, x, hx, y, reserve, w)``: dw."""

    def __call__(self, desc: Any, x: Any, hx: Any, y: Any, reserve: Any, w: Any) -> Variable:
        modes = desc.shape.rnn_mode, desc.shape.direction_mode
        made: Variable = dnn.GpuDnnRNNGradWeights(*modes, **_settings(desc))(w, x, hx, y, reserve)
        return made


def _stand_in(maker: Any) -> Any:
    name = {"_Dropout": "GpuDnnDropoutOp", "_GradInputs": "GpuDnnRNNGradInputs"}.get(
        maker.__name__, "GpuDnnRNNGradWeights"
    )
    body = {"targets": (f"vendor.gpudnn.{name}",), "maker": maker, "abstract": True}
    return OpName(name, (Op,), {**body, "__doc__": maker.__doc__})


GpuDnnDropoutOp, GpuDnnRNNGradInputs = _stand_in(_Dropout), _stand_in(_GradInputs)
GpuDnnRNNGradWeights = _stand_in(_GradWeights)
