"""The layout of an RNN's parameters: one flat vector, cuDNN's own.

The vector has all weight matrices first, for each layer and in it for each direction (forward, then
backward): the input matrices in the order of the gates, then the recurrent ones. All biases follow
in the same order. Matrices are row-major, (hidden, inputs). Gates are i, f, g, o for an LSTM and r,
z, n for a GRU (cuDNN's linLayerID order, which is PyTorch's, too). With ``input_mode="skip"`` the
first layer has no input matrices, but input biases. Where there are no biases, the vector ends
before them. An LSTM with projections has a matrix more after the recurrent ones, (projection,
hidden); then states and recurrent matrices are of the projection's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from symdnn.errors import ArgumentError, OptionError
from symdnn.graph.dims import SizeT
from symdnn.graph.place import HOST
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike
from symdnn.graph.variable import Shared, Variable

#: The gates of each mode, in order.
GATES = {
    "rnn_relu": ("h",),
    "rnn_tanh": ("h",),
    "lstm": ("i", "f", "g", "o"),
    "gru": ("r", "z", "n"),
}
INPUT_MODES = ("linear", "skip")
DIRECTION_MODES = ("unidirectional", "bidirectional")


@dataclass(frozen=True)
class RNNPart:
    """One matrix or bias: its offset in the vector, its kind, layer, direction and gate.

    ``kind`` is ``"W"`` (input matrix), ``"R"`` (recurrent matrix), ``"bW"`` or ``"bR"`` (their
    biases), or ``"P"`` (projection of the state, of no gate); ``direction`` is 0 (forward) or 1
    (backward).
    """

    layer: int
    direction: int
    kind: str
    gate: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def name(self) -> str:
        """A name such as ``layer0.W_i`` or ``layer1.reverse.bR_n``."""
        back = ".reverse" if self.direction else ""
        return f"layer{self.layer}{back}.{self.kind}{'_' * bool(self.gate)}{self.gate}"


@dataclass(frozen=True)
class RNNShape:
    """The parameters of the layout: the mode, the sizes, and the modes of input and direction.

    ``proj_size``: features of an LSTM's state where it is projected, else 0. ``biases``: whether
    there are any.
    """

    rnn_mode: str
    hidden_size: int
    num_layers: int
    input_mode: str = "linear"
    direction_mode: str = "unidirectional"
    proj_size: int = 0
    biases: bool = True

    def check(self) -> None:
        """Raise :class:`OptionError`, which names the argument, for a wrong value."""
        for what, value, allowed in (
            ("rnn_mode", self.rnn_mode, tuple(GATES)),
            ("input_mode", self.input_mode, INPUT_MODES),
            ("direction_mode", self.direction_mode, DIRECTION_MODES),
        ):
            if value not in allowed:
                raise OptionError(f"{what}={value!r}; wanted one of {', '.join(allowed)}")
        if self.hidden_size < 1 or self.num_layers < 1:
            raise OptionError(
                f"hidden_size={self.hidden_size}, num_layers={self.num_layers}: wanted 1 or more"
            )
        if self.proj_size and not (self.has_cell and 0 < self.proj_size < self.hidden_size):
            raise OptionError(
                f"proj_size={self.proj_size}: wanted 0 or, of an LSTM, less than its hidden_size "
                f"{self.hidden_size}; the mode is {self.rnn_mode}"
            )

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of the mode, in order."""
        return GATES[self.rnn_mode]

    @property
    def directions(self) -> int:
        """1, or 2 for a bidirectional network."""
        return 1 + (self.direction_mode == "bidirectional")

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state (LSTM)."""
        return self.rnn_mode == "lstm"

    @property
    def state_size(self) -> int:
        """Features of the state of a layer and direction."""
        return self.proj_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """Features of the output: those of the state times directions."""
        return self.state_size * self.directions

    def inputs_of(self, layer: int, input_size: SizeT) -> SizeT | int:
        """Columns of the input matrices of a layer; 0 if it has none."""
        if layer > 0:
            return self.output_size
        return 0 if self.input_mode == "skip" else input_size

    def size(self, input_size: SizeT) -> SizeT:
        """Number of parameters; ``input_size`` may be symbolic."""
        h, d, g, n = self.hidden_size, self.directions, len(self.gates), self.num_layers
        first = self.inputs_of(0, input_size) + self.state_size
        later = (n - 1) * (self.output_size + self.state_size)
        rest = n * d * (self.proj_size * h + self.bias_count)
        return (first + later) * (d * g * h) + rest

    def advice(self, size: object, given: object) -> str:
        """What to do with a vector of ``given`` numbers where ``size`` are wanted."""
        none = self.size(0)
        each = self.size(1) - none
        if not (isinstance(size, int) and isinstance(given, int) and each and given != size):
            return ""
        inputs, rest = divmod(given - none, each)
        if rest or inputs < 1:
            return ""
        fits = f"pass x of shape (time, batch, {inputs})"
        return f"A vector of {given} is for {inputs} inputs: {fits}"

    @property
    def bias_count(self) -> int:
        """Biases of one layer and direction."""
        return 2 * len(self.gates) * self.hidden_size * self.biases

    def parts(self, input_size: int) -> tuple[RNNPart, ...]:
        """All parts, in the order of the vector."""
        return _parts(self, input_size)

    def block_offsets(self, input_size: int) -> list[tuple[int, int]]:
        """(offset of the matrices, offset of the biases) of each layer and direction."""
        h, g, s = self.hidden_size, len(self.gates), self.state_size
        at, found = 0, []
        for layer in range(self.num_layers):
            for _ in range(self.directions):
                found.append(at)
                at += g * h * (self.inputs_of(layer, input_size) + s) + self.proj_size * h
        return [(offset, at + i * self.bias_count) for i, offset in enumerate(found)]


@cache
def _parts(shape: RNNShape, input_size: int) -> tuple[RNNPart, ...]:
    matrices: list[RNNPart] = []
    biases: list[RNNPart] = []
    h = shape.hidden_size
    for index, (at, bias_at) in enumerate(shape.block_offsets(input_size)):
        layer, direction = divmod(index, shape.directions)
        columns = shape.inputs_of(layer, input_size)
        for kind, width in (("W", columns), ("R", shape.state_size)):
            for gate in shape.gates:
                size = (h, width)
                if width:
                    matrices.append(RNNPart(layer, direction, kind, gate, at, size))
                at += h * width
                biases.append(RNNPart(layer, direction, "b" + kind, gate, bias_at, (h,)))
                bias_at += h
        if shape.proj_size:
            matrices.append(RNNPart(layer, direction, "P", "", at, (shape.proj_size, h)))
    return (*matrices, *(biases if shape.biases else []))


def views(w: Any, shape: RNNShape, input_size: int) -> dict[str, Any]:
    """Every part of the vector ``w`` by name, as a view; matrices are (hidden, inputs)."""
    check_length(w, shape, input_size)
    return {
        p.name: w[p.offset : p.offset + p.size].reshape(p.shape) for p in shape.parts(input_size)
    }


def check_length(w: Array, shape: RNNShape, input_size: int) -> None:
    """Raise :class:`OptionError` unless ``w`` is a vector of the right length."""
    wanted = int(shape.size(input_size))
    if w.shape != (wanted,):
        raise OptionError(
            f"the parameters of {shape} for {input_size} inputs are a vector of {wanted}; "
            f"got shape {w.shape}"
        )


def pairs(w: Any, shape: RNNShape, layer: int, input_size: int) -> list[Array]:
    """[W, b, W, b, ...] of pseudo-layer ``layer`` (2 l, 2 l + 1 when bidirectional), as views.

    Input parts in the order of the gates, then recurrent ones. Matrices are transposed, so (inputs,
    hidden) in Fortran order. A missing input matrix is an empty (0, hidden) view, a missing bias
    one of (0,). The last one of a layer with projections is their matrix, (hidden, projection).
    """
    count = shape.num_layers * shape.directions
    if not 0 <= layer < count:
        raise OptionError(f"layer={layer}: {shape} has the layers 0 to {count - 1}")
    number, direction = divmod(layer, shape.directions)
    found = views(w, shape, input_size)
    out = []
    stem = f"layer{number}{'.reverse' if direction else ''}"
    for kind in ("W", "R"):
        for gate in shape.gates:
            empty = w[:0].reshape(shape.hidden_size, 0)
            out.append(found.get(f"{stem}.{kind}_{gate}", empty).T)
            out.append(found.get(f"{stem}.b{kind}_{gate}", w[:0]))
    return [*out, found[f"{stem}.P"].T] if shape.proj_size else out


def pack(parts: Any, shape: RNNShape, input_size: int, dtype: DtypeLike) -> Array:
    """The vector of ``parts``: a mapping from names, or a list of :func:`pairs` lists."""
    w = np.zeros(shape.size(input_size), dtype)
    if isinstance(parts, Mapping):
        _pack_named(w, parts, shape, input_size)
    else:
        _pack_pairs(w, parts, shape, input_size)
    return w


def _pack_named(w: Array, parts: Mapping[str, Any], shape: RNNShape, input_size: int) -> None:
    target = views(w, shape, input_size)
    if set(parts) != set(target):
        missing, extra = sorted(set(target) - set(parts)), sorted(set(parts) - set(target))
        raise OptionError(f"pack_params: missing {missing}, unknown {extra}")
    for name, value in parts.items():
        _assign(target[name], value, name)


def _pack_pairs(w: Array, parts: Sequence[Any], shape: RNNShape, input_size: int) -> None:
    count = shape.num_layers * shape.directions
    if len(parts) != count:
        raise OptionError(
            f"pack_params: wanted {count} lists, one for each layer; got {len(parts)}"
        )
    for layer, given in enumerate(parts):
        target = pairs(w, shape, layer, input_size)
        if len(given) != len(target):
            raise OptionError(
                f"pack_params: layer {layer} has {len(target)} parts, got {len(given)}"
            )
        for i, (t, value) in enumerate(zip(target, given, strict=True)):
            _assign(t, value, f"part {i} of layer {layer}")


def _assign(target: Array, value: Array, name: str) -> None:
    array = np.asarray(value)
    if array.shape != target.shape:
        raise OptionError(f"pack_params: {name} has shape {target.shape}, got {array.shape}")
    target[...] = array


class RNNParameters:
    """What a network says about its parameters: their number, and the parts of their vector."""

    layout: RNNShape
    dtype: str

    def get_param_size(self, input_size: int | Sequence[int]) -> int:
        """Number of parameters; ``input_size`` is [batch, features], or the features alone."""
        return int(self.layout.size(self._features(input_size)))

    def param_parts(self, input_size: int | Sequence[int]) -> tuple[RNNPart, ...]:
        """Every matrix and bias with its name, offset and shape, in the order of the vector."""
        return self.layout.parts(self._features(input_size))

    def _features(self, input_size: int | Sequence[int]) -> int:
        if isinstance(input_size, int | np.integer):
            return int(input_size)
        return int(input_size[-1])

    def _host(self, w: object) -> Array:
        if not isinstance(w, Shared):
            raise ArgumentError(f"split_params: wanted a shared variable, got {w!r}")
        if w.type.ndim != 1:
            raise ArgumentError(f"split_params: wanted a shared vector, got {w.type}")
        value = w.storage.host()
        # The views may be written, so copies on devices are stale from now on.
        w.storage.written(HOST)
        return value

    def split_params(self, w: Variable, layer: int, input_size: int | Sequence[int]) -> list[Array]:
        """[W, b, W, b, ...] of a layer as views into the value of the shared variable ``w``.

        Input parts by gate, then recurrent ones: reset, update, new memory for a GRU; input,
        forget, new memory, output for an LSTM. Matrices are (inputs, hidden). In a bidirectional
        network layers 2 i and 2 i + 1 are the two directions of layer i. Writing (``p[:] = ...``)
        changes ``w``; make new views after a function on a GPU has updated it.
        """
        value = self._host(w)
        return pairs(value, self.layout, layer, self._features(input_size))

    def named_params(self, w: Variable, input_size: int | Sequence[int]) -> dict[str, Array]:
        """The same views by name (``layer0.W_i``); matrices are (hidden, inputs)."""
        return views(self._host(w), self.layout, self._features(input_size))

    def pack_params(self, parts: Any, input_size: int | Sequence[int]) -> Array | None:
        """The vector (an array) of given parts: the inverse of both methods.

        ``parts`` has for each layer the list of :meth:`split_params`, or is a mapping as the result
        of :meth:`named_params`.
        """
        dtype = TensorType(self.dtype).numpy
        return pack(parts, self.layout, self._features(input_size), dtype)
