"""Recurrent networks of several layers: cudnn.torch's modules, in one and in two directions.

Sequences are (seqLength, batch, inputDim), or (batch, seqLength, inputDim) with ``batchFirst``; a
single sequence is (seqLength, inputDim). All parameters are one vector, in cuDNN's own layout
(:mod:`symdnn.ops.nn.rnn_params`); :meth:`Recurrent.named_weights` and :meth:`Recurrent.set_weights`
know its parts by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from symdnn.config import config
from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.origin import hinted
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn import init
from symdnn.nn.modules.inside import Lent
from symdnn.nn.modules.module import Module, symbolic
from symdnn.nn.modules.torch_keywords import torch_keywords
from symdnn.ops.array.create import zeros
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.nn import rnn_params
from symdnn.ops.nn.rnn import RNNBlock
from symdnn.ops.nn.rnn_params import RNNPart, RNNShape
from symdnn.options import is_int

__all__ = [
    "BGRU", "BLSTM", "BRNNReLU", "BRNNTanh", "GRU", "LSTM", "RNNReLU", "RNNTanh", "Recurrent",
]  # fmt: skip

Initial = Callable[[Sequence[int], np.random.Generator], Any]

#: The input modes by symdnn's and cuDNN's names.
_INPUT_MODES = {
    "linear": "linear", "CUDNN_LINEAR_INPUT": "linear", "skip": "skip", "CUDNN_SKIP_INPUT": "skip",
}  # fmt: skip


@torch_keywords(
    input_size="inputDim", hidden_size="outputDim", num_layers="numberOfLayers",
    batch_first="batchFirst",
)  # fmt: skip
class Recurrent(Module):
    """Base of the recurrent networks: ``numberOfLayers`` layers of ``outputDim`` units.

    ``rnn(x)`` is the output of the last layer at every step, (seqLength, batch, outputDim), both
    directions concatenated (2 outputDim) in a bidirectional network. In ``rnn(x, lengths)`` the
    integer vector ``lengths`` has the length of each sequence, in any order; after its end the
    output is 0. ``rnn(x, lengths, hx, cx)`` starts from given states, (numberOfLayers x directions,
    batch, outputDim), in place of zeros; each may be None. :meth:`states` returns the last states,
    too; with ``returnStates`` a call returns ``[y, hy]``, for an LSTM ``[y, hy, cy]``.

    ``bidirectional=True`` of ``LSTM`` is ``BLSTM``, and so on. ``return_state=True`` makes it
    PyTorch's: a call returns ``(y, h)``, of an LSTM ``(y, (h, c))``. So does a call with states in
    PyTorch's way, ``rnn(x, h)`` of floats or ``lstm(x, (h, c))``, whatever ``return_state`` is.
    ``bias=False`` leaves all biases out. ``proj_size`` of an LSTM (PyTorch's; Sak et al. 2014)
    makes states and outputs of that many features: products of ``o tanh(c)`` with a matrix
    (proj_size, outputDim). Cell states keep outputDim. Such a network is a loop over its steps.

    ``dropout`` is the rate between the layers in training, ``seed`` that of its masks.
    With ``inputMode="skip"`` the first layer's gates add the input without a matrix (inputDim must
    be outputDim). ``weight_init``, ``recurrent_init`` and ``bias_init`` draw each gate's matrix or
    vector of initial values. By default all are uniform within 1 / sqrt(outputDim), as in Torch7
    and PyTorch.
    """

    rnn_mode: ClassVar[str] = ""
    bidirectional: bool = False

    weight: Shared

    def __init__(
        self,
        inputDim: int,
        outputDim: int,
        numberOfLayers: int = 1,
        batchFirst: bool = False,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        bias: bool = True,
        proj_size: int = 0,
        inputMode: str = "linear",
        returnStates: bool = False,
        return_state: bool = False,
        seed: int | Sequence[int] | None = None,
        weight_init: Initial | None = None,
        recurrent_init: Initial | None = None,
        bias_init: Initial | None = None,
        dtype: str | None = None,
    ) -> None:
        name = type(self).__name__
        for what, n in (
            ("inputDim", inputDim), ("outputDim", outputDim), ("numberOfLayers", numberOfLayers),
        ):  # fmt: skip
            if not is_int(n) or n < 1:
                raise InputError(f"{name}: {what}={n!r}; wanted an int, 1 or more")
        if inputMode not in _INPUT_MODES:
            raise UnknownWord(f"{name}: inputMode={inputMode!r}; wanted 'linear' or 'skip'")
        if not is_int(proj_size):
            raise InputError(f"{name}: proj_size={proj_size!r}; wanted an int")
        if proj_size and not (self.rnn_mode == "lstm" and 0 < proj_size < outputDim):
            raise InputError(
                f"{name}: proj_size={proj_size}; wanted 0 or, of an LSTM, less than its "
                f"hidden_size {outputDim}"
            )
        if not 0 <= dropout <= 1:
            raise InputError(f"{name}: dropout={dropout}; wanted a probability, 0 to 1")
        self.inputDim, self.outputDim = int(inputDim), int(outputDim)
        self.numberOfLayers, self.batchFirst = int(numberOfLayers), bool(batchFirst)
        self.inputMode, self.dropout = _INPUT_MODES[inputMode], float(dropout)
        if self.inputMode == "skip" and inputDim != outputDim:
            raise InputError(
                f"{name}: inputMode='skip' wants inputDim to be outputDim, got {inputDim} and "
                f"{outputDim}"
            )
        if seed is not None and (np.size(seed) == 0 or np.any(np.asarray(seed) < 0)):
            raise InputError(f"{name}: seed={seed!r}; wanted an int, 0 or more")
        self.bidirectional = bool(self.bidirectional or bidirectional)
        self.returnStates, self.return_state = bool(returnStates), bool(return_state)
        self._seed = int(init.generator().integers(2**31)) if seed is None else seed
        # A value that a user sets may be shared, and is no parameter of this module.
        self._lent = Lent({})
        self.bias, self.proj_size = bool(bias), int(proj_size)
        kind = str(config.floatX) if dtype is None else dtype
        self._block = self._made_block(kind)
        draws = {"W": weight_init, "R": recurrent_init, "b": bias_init}
        size = int(self.layout.size(self.inputDim))
        self.parameter("weight", (size,), lambda shape, rng: self._drawn(draws, rng), kind)

    def _made_block(self, dtype: str) -> RNNBlock:
        direction = "bidirectional" if self.bidirectional else "unidirectional"
        return RNNBlock(
            dtype, self.outputDim, self.numberOfLayers, self.rnn_mode, self.inputMode, direction,
            dropout=self.dropout, stream=self._seed, bias=self.bias, proj_size=self.proj_size,
        )  # fmt: skip

    def _drawn(self, draws: Mapping[str, Initial | None], rng: np.random.Generator) -> Array | None:
        """The vector of initial values, part by part."""
        usual = init.uniform(1 / math.sqrt(self.outputDim))
        value = np.empty(int(self.layout.size(self.inputDim)))
        for p in self.parts():
            draw = draws["R" if p.kind == "P" else p.kind[0]] or usual
            value[p.offset : p.offset + p.size] = np.reshape(draw(p.shape, rng), -1)
        return value

    # -- parts of the vector ----------------------------------------------------------------------

    @property
    def layout(self) -> RNNShape:
        """The parameters of the vector's layout."""
        return self._block.layout

    @property
    def directions(self) -> int:
        """1, or 2 for a bidirectional network."""
        return self.layout.directions

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state (LSTM)."""
        return self.layout.has_cell

    def parts(self) -> tuple[RNNPart, ...]:
        """Every matrix and bias with its name, offset and shape, in the order of the vector."""
        return self.layout.parts(self.inputDim)

    def named_weights(self) -> dict[str, Any]:
        """Copies of the parts by name, such as ``layer0.W_i`` and ``layer1.reverse.bR_n``.

        ``W`` are the matrices (outputDim, inputs) of a layer's input, ``R`` the recurrent ones,
        ``bW`` and ``bR`` their biases, ``layer0.P`` the projection; gates are i, f, g, o of an
        LSTM, r, z, n of a GRU, h else.
        """
        value = np.array(self.weight.get_value())
        return rnn_params.views(value, self.layout, self.inputDim)

    def set_weights(self, parts: Mapping[str, Any]) -> Recurrent:
        """Take some or all parts by name; returns the module.

        Raises :class:`~symdnn.errors.InputError` for a name or a shape that it has not, and changes
        nothing then.
        """
        value = np.array(self.weight.get_value())
        views = rnn_params.views(value, self.layout, self.inputDim)
        problems = []
        for name, part in parts.items():
            array = np.asarray(part)
            if name not in views:
                problems.append(f"{name} is unknown")
            elif array.shape != views[name].shape:
                problems.append(f"{name} has shape {views[name].shape}, got {array.shape}")
            else:
                views[name][...] = array
        if problems:
            text = "; ".join(problems)
            raise InputError(f"{type(self).__name__}.set_weights: {text}. Nothing was changed")
        self.weight.set_value(value)
        return self

    # -- modes ------------------------------------------------------------------------------------

    def setPersist(self, persist: bool | str = True) -> Recurrent:
        """Let cuDNN run it by a persistent algorithm, faster for small batches; returns the module.

        True is ``persist_static``, False what the flag ``dnn.rnn.algo`` says; a word of that flag
        is taken too. The algorithm's results are checked against the standard one's before it is
        used; where cuDNN refuses it for the sizes at hand, the call's error names those that work.
        On a CPU it means nothing. Raises ValueError for another word.
        """
        word = persist if isinstance(persist, str) else ("persist_static" if persist else None)
        self.hints = replace(self.hints, algo=word)
        return self

    def setLengths(self, lengths: TensorLike | None) -> Recurrent:
        """The lengths of calls that are given none (inside ``Sequential``); None: none."""
        self._lent.value["lengths"] = lengths
        return self

    @property
    def lengths(self) -> Any:
        """What :meth:`setLengths` set; it can be assigned."""
        return self._lent.value.get("lengths")

    @lengths.setter
    def lengths(self, value: TensorLike | None) -> None:
        self.setLengths(value)

    @property
    def hiddenInput(self) -> Any:
        """The initial states of calls that are given none; None: zeros. It can be assigned."""
        return self._lent.value.get("hx")

    @hiddenInput.setter
    def hiddenInput(self, value: TensorLike | None) -> None:
        self._lent.value["hx"] = value

    @property
    def cellInput(self) -> Any:
        """The initial cell states of calls that are given none; None: zeros. LSTM only."""
        return self._lent.value.get("cx")

    @cellInput.setter
    def cellInput(self, value: TensorLike | None) -> None:
        self._lent.value["cx"] = value

    # -- the expression ---------------------------------------------------------------------------

    def forward(
        self,
        x: Variable,
        lengths: Any = None,
        hx: Any = None,
        cx: Variable | None = None,
    ) -> Any:
        if _are_states(lengths) or isinstance(hx, list | tuple):
            given = lengths if _are_states(lengths) else hx
            rest = None if _are_states(lengths) else lengths
            return self._in_pairs(self._applied(x, rest, *self._split_states(given)))
        found = self._applied(x, lengths, hx, cx)
        if self.return_state:
            return self._in_pairs(found)
        found[0].tag.unpacking = _UNPACKING
        return found if self.returnStates else found[0]

    def _split_states(self, given: Any) -> list[Any]:
        """``h`` or ``(h, c)`` as ``[h, c]``."""
        states = list(given) if isinstance(given, list | tuple) else [given]
        wanted = 2 if self.has_cell else 1
        if len(states) != wanted:
            what = "states (h, c)" if wanted == 2 else "a state h"
            raise TypeMismatch(type(self).__name__, what, given)
        return states + [None] * (2 - wanted)

    @staticmethod
    def _in_pairs(found: Sequence[Variable]) -> tuple[Any, Any]:
        """``[y, h]`` or ``[y, h, c]`` as PyTorch returns it."""
        y, *states = found
        return y, states[0] if len(states) == 1 else tuple(states)

    def states(
        self,
        x: Variable,
        lengths: Variable | None = None,
        hx: Variable | None = None,
        cx: Variable | None = None,
    ) -> list[Variable]:
        """``[y, hy]``, for an LSTM ``[y, hy, cy]``: a call's output and the last states.

        States are (numberOfLayers x directions, batch, outputDim), forward direction first; with
        lengths those at each sequence's end (its beginning, for the backward direction).
        """
        given = [symbolic(self, v) for v in (x, lengths, hx, cx)]
        with hinted(self._hints()):
            return self._applied(*given)

    def _applied(
        self, x: Variable, lengths: Variable | None, hx: Variable | None, cx: Variable | None
    ) -> list[Variable]:
        name = type(self).__name__
        lengths = self._default("lengths", lengths)
        if cx is not None and not self.has_cell:
            raise TypeMismatch(name, "no cell state cx, which only an LSTM has", cx)
        single = self._is_single(x)
        steps = x.dimshuffle(0, "x", 1) if single else x
        steps = steps.dimshuffle(1, 0, 2) if self.batchFirst and not single else steps
        if lengths is not None and single:
            lengths = lengths.dimshuffle("x") if lengths.type.ndim == 0 else lengths
        names = ("hx", "cx") if self.has_cell else ("hx",)
        given = {"hx": hx, "cx": cx}
        first = [self._state(n, self._default(n, given[n]), steps, single) for n in names]
        found = self._block.apply(
            self.weight, cast(steps, self.weight.type.dtype), *first, lengths=lengths,
            train=self.training,
        )  # fmt: skip
        return self._restored(found, single)

    def _default(self, name: str, value: TensorLike | None) -> Variable | None:
        """The call's value, else the one that was set."""
        value = self._lent.value.get(name) if value is None else value
        return value if value is None else as_variable(value)

    def _is_single(self, x: Variable) -> bool:
        """Whether ``x`` is one sequence without a batch; raises TypeMismatch for what is none."""
        name = type(self).__name__
        order = "batch, seqLength" if self.batchFirst else "seqLength, batch"
        wanted = f"a float tensor ({order}, {self.inputDim}) or (seqLength, {self.inputDim})"
        t = x.type if isinstance(x, Variable) else None
        if not isinstance(t, TensorType) or not t.is_float or t.ndim not in (2, 3):
            raise TypeMismatch(name, wanted, x if t is None else t)
        if t.shape[-1] not in (None, self.inputDim):
            raise TypeMismatch(name, wanted, t)
        return bool(t.ndim == 2)

    def _state(self, name: str, state: Variable | None, x: Variable, single: bool) -> Variable:
        """An initial state (depth, batch, features): given, or zeros."""
        depth, batch = self.numberOfLayers * self.directions, dims_of(x)[1]
        dtype = self.weight.type.dtype
        features = self.layout.state_size if name == "hx" else self.outputDim
        if state is None:
            return zeros((depth, batch, features), dtype)
        wanted = 2 if single else 3
        if state.type.ndim != wanted:
            shape = f"({depth}, {'' if single else 'batch, '}{features})"
            raise TypeMismatch(type(self).__name__, f"{name} of shape {shape}", state.type)
        return cast(state.dimshuffle(0, "x", 1) if single else state, dtype)

    def _restored(self, found: Sequence[Variable], single: bool) -> list[Variable]:
        """Output and states in the form of the input."""
        if single:
            return [v.dimshuffle(0, 2) for v in found]
        y, *states = found
        return [y.dimshuffle(1, 0, 2) if self.batchFirst else y, *states]

    def describe(self) -> str:
        more = [] if self.inputMode == "linear" else [self.inputMode]
        more += [f"dropout={self.dropout:g}"] if self.dropout else []
        more += ["batchFirst"] if self.batchFirst else []
        more += ["bidirectional"] if self.bidirectional and not type(self).bidirectional else []
        more += [] if self.bias else ["without bias"]
        more += [f"proj_size={self.proj_size}"] if self.proj_size else []
        sizes = f"{self.inputDim} -> {self.outputDim} x {self.numberOfLayers}"
        return f"({', '.join([sizes, *more])})"


_UNPACKING = (
    "a recurrent layer returns the output alone; with return_state=True it is (y, h), of an LSTM "
    "(y, (h, c))"
)


def _are_states(given: Any) -> bool:
    """Whether PyTorch's states stand in the place of the lengths, which are integers."""
    if isinstance(given, list | tuple):
        return any(isinstance(v, Variable) and v.type.ndim > 0 for v in given)
    return isinstance(given, Variable) and given.type.is_float


class RNNReLU(Recurrent):
    """``h' = relu(W x + bW + R h + bR)`` (cudnn.RNNReLU)."""

    rnn_mode = "rnn_relu"


class RNNTanh(Recurrent):
    """``h' = tanh(W x + bW + R h + bR)`` (cudnn.RNNTanh)."""

    rnn_mode = "rnn_tanh"


class LSTM(Recurrent):
    """Long short-term memory: ``c' = f c + i g``, ``h' = o tanh(c')`` (cudnn.LSTM).

    >>> LSTM(32, 16, 3)
    nn.LSTM(32 -> 16 x 3)
    """

    rnn_mode = "lstm"


class GRU(Recurrent):
    """Gated recurrent units: ``h' = (1 - z) n + z h``, ``n = tanh(W x + bW + r (R h + bR))``.

    The reset gate multiplies after the recurrent bias is added, as in cuDNN and PyTorch.
    (cudnn.GRU)
    """

    rnn_mode = "gru"


class BRNNReLU(RNNReLU):
    """:class:`RNNReLU` in both directions: (..., 2 outputDim), forward direction first."""

    bidirectional = True


class BRNNTanh(RNNTanh):
    """:class:`RNNTanh` in both directions: (..., 2 outputDim), forward direction first."""

    bidirectional = True


class BLSTM(LSTM):
    """:class:`LSTM` in both directions: (..., 2 outputDim), forward direction first (cudnn.BLSTM).

    >>> BLSTM(32, 16, 3, True)
    nn.BLSTM(32 -> 16 x 3, batchFirst)
    """

    bidirectional = True


class BGRU(GRU):
    """:class:`GRU` in both directions: (..., 2 outputDim), forward direction first."""

    bidirectional = True
