"""Recurrent layers and dropout of :mod:`symdnn.gpu.dnn`, and Theano's descriptors of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.flags import FLAGS
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Constant, Shared, Variable, as_variable
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.rnn import RNNBlock as NeutralRNNBlock
from symdnn.ops.nn.rnn_params import RNNPart, RNNShape
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "DropoutDescriptor", "RNNBlock", "RNNDescriptor", "_DropoutDescriptor", "_RNNDescriptor",
    "_RNNParamSize", "_RNNSplitParams", "dropout",
]  # fmt: skip


class RNNBlock(NeutralRNNBlock):
    """Recurrent layers by cuDNN; see :class:`symdnn.ops.nn.rnn.RNNBlock`.

    ``algo`` is a value of the flag ``dnn.rnn.algo``; None means the flag's value.

    >>> import numpy as np
    >>> block = RNNBlock("float32", 16, 3, "gru")
    >>> block.get_param_size([2, 32])
    5664
    """

    def __init__(
        self,
        dtype: Any,
        hidden_size: int,
        num_layers: int,
        rnn_mode: str,
        input_mode: str = "linear",
        direction_mode: str = "unidirectional",
        context_name: Any = None,
        *,
        dropout: float = 0.0,
        stream: Any = None,
        algo: str | None = None,
    ) -> None:
        words = (rnn_mode, input_mode, direction_mode, context_name)
        super().__init__(dtype, hidden_size, num_layers, *words, dropout=dropout, stream=stream)
        allowed = FLAGS["dnn.rnn.algo"].choices
        if algo is not None and algo not in allowed:
            raise ValueError(f"RNNBlock: algo={algo!r}, wanted one of {', '.join(allowed)}")
        self.algo = algo

    def apply(
        self,
        w: Any,
        x: Any,
        hx: Any,
        cx: Any = None,
        *,
        lengths: Any = None,
        train: bool = True,
        hints: Hints | None = None,
    ) -> list[Variable]:
        wish = Hints(backend="cudnn", algo=self.algo) if hints is None else hints
        return super().apply(w, x, hx, cx, lengths=lengths, train=train, hints=wish)


# -- descriptors ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DropoutDescriptor:
    """The probability and the seed of dropout."""

    dropout: float
    seed: int


@dataclass(frozen=True)
class RNNDescriptor:
    """Recurrent layers as a value; ``block`` applies them."""

    shape: RNNShape
    dtype: str
    dropout: DropoutDescriptor

    @property
    def block(self) -> RNNBlock:
        """The layers as an :class:`RNNBlock`."""
        s = self.shape
        words = (s.hidden_size, s.num_layers, s.rnn_mode, s.input_mode, s.direction_mode)
        rate, seed = self.dropout.dropout, self.dropout.seed
        return RNNBlock(self.dtype, *words, dropout=rate, stream=seed)


@dataclass(frozen=True)
class _DropoutDescriptor:
    """Makes a :class:`DropoutDescriptor` and the state of its generator (Theano's op)."""

    context_name: Any = None

    def __call__(self, dropout: Any, seed: Any, context_name: Any = None) -> DropoutDescriptor:
        return DropoutDescriptor(float(_number(dropout)), int(_number(seed)))


@dataclass(frozen=True)
class _RNNDescriptor:
    """Makes an :class:`RNNDescriptor` (Theano's op)."""

    context_name: Any = None

    def __call__(
        self,
        hidden_size: Any,
        num_layers: Any,
        ddesc: DropoutDescriptor,
        input_mode: str,
        direction_mode: str,
        rnn_mode: str,
        dtype: str,
    ) -> RNNDescriptor:
        sizes = int(_number(hidden_size)), int(_number(num_layers))
        shape = RNNShape(rnn_mode, *sizes, input_mode, direction_mode)
        shape.check()
        return RNNDescriptor(shape, dtype, ddesc)


@dataclass(frozen=True)
class _RNNParamSize:
    """The number of parameters of recurrent layers, as a constant (Theano's op)."""

    context_name: Any = None

    def __call__(self, desc: RNNDescriptor, input_size: Any, typecode: Any = None) -> Variable:
        sizes = [int(n) for n in np.ravel(_number(input_size))]
        return as_variable(np.asarray(desc.block.get_param_size(sizes), np.uint64))


@dataclass(frozen=True)
class _RNNSplitParams:
    """[W, b, W, b, ...] of a layer as parts of a symbolic vector (Theano's op).

    Matrices are (inputs, hidden); the order is that of ``RNNBlock.split_params``.
    """

    rnn_mode: str = "lstm"

    def __call__(
        self, w: Any, desc: RNNDescriptor, layer: Any, isize: Any, typecode: Any = None
    ) -> list[Variable]:
        features, s = int(np.ravel(_number(isize))[-1]), desc.shape
        where = divmod(int(_number(layer)), s.directions)
        mine = [p for p in s.parts(features) if (p.layer, p.direction) == where]
        found = {(p.kind, p.gate): _part(as_variable(w), p) for p in mine}
        empty = as_variable(w)[:0].reshape((0, s.hidden_size))  # a skipped input's matrix
        made: list[Variable] = []
        for kind in ("W", "R"):
            for gate in s.gates:
                matrix = found.get((kind, gate))
                made += [empty if matrix is None else matrix.T, found["b" + kind, gate]]
        return made


def _part(w: Variable, part: RNNPart) -> Variable:
    return w[part.offset : part.offset + part.size].reshape(part.shape)


def _number(value: object) -> Any:
    """A number or constant."""
    return value.data if isinstance(value, Constant) else value


# -- dropout ---------------------------------------------------------------------------------------


def dropout(
    x: Any, dropout: float = 0.0, seed: int = 4242
) -> tuple[Variable, DropoutDescriptor, DropoutDescriptor, Shared]:
    """(y, descriptor, descriptor, state): ``y`` is ``x`` with dropped elements, the others scaled.

    On the GPU cuDNN makes the mask. The state advances in each call of a function that reads it.
    Equal seeds give equal masks.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}: wanted a probability, less than 1")
    stream = RandomStream(seed)
    state = stream.new_state()
    y, _, new = Dropout()(state, as_variable(x), np.float32(dropout), hints=Hints(backend="cudnn"))
    stream.register(state, new)
    descriptor = DropoutDescriptor(float(dropout), int(seed))
    return y, descriptor, descriptor, state
