"""The layers of recurrent networks at known sizes, and the scratch memory of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_ir import shape_of
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.launch.scratch import address, aligned
from symdnn.cpu.rnn.recurrent_grad_ir import GATE_SLOTS
from symdnn.cpu.rnn.recurrent_ir import GATES, SAVED_VECTORS, panels
from symdnn.cpu.rnn.recurrent_narrow_ir import SPILLED
from symdnn.cpu.threads import threads
from symdnn.graph.typing import Array
from symdnn.ops.nn.rnn_params import RNNShape

#: Terms (steps times sequences) of a block of the matrices' gradients; a block has whole steps.
_BLOCK_TERMS = 256
#: Rows of a product of the inputs of several steps: their matrix is read once for so many.
_CHUNK_ROWS = 32
#: Bytes of a direction's matrices that fit the L2 caches; sequences at once where they do not.
_CACHED_BYTES, _MOST_TILE_ROWS = 7 << 19, 128
#: Multiplications of a step for which another thread pays: a barrier takes about 1 us.
_MULTIPLICATIONS_PER_THREAD = 1 << 16


@dataclass(frozen=True)
class RecurrentLayer:
    """One direction of a layer at known sizes; ``columns`` is the number of its input features.

    ``matrices`` and ``biases`` are offsets of its parameters in the vector. ``direction`` is 1 if
    it runs from the last step to the first; ``directions`` share the result. The sequences of each
    of ``lanes`` give gradients of the parameters of their own.
    """

    mode: str
    steps: int
    batch: int
    columns: int
    hidden: int
    direction: int
    directions: int
    matrices: int
    biases: int
    lanes: int = 1

    @property
    def gates(self) -> int:
        """Number of gates."""
        return GATES[self.mode]

    @property
    def groups(self) -> int:
        """Number of groups of 16 units."""
        return -(-self.hidden // WIDTH)

    @property
    def examples(self) -> int:
        """Sequences of a lane."""
        return self.batch // self.lanes

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of the values of the gates that are saved for the gradient."""
        return (self.steps, self.batch, self.groups, SAVED_VECTORS[self.mode], WIDTH)

    @property
    def order(self) -> range:
        """Time indices in the order in which the direction runs."""
        steps = range(self.steps)
        return steps[::-1] if self.direction else steps

    @property
    def units(self) -> slice:
        """The columns of the result that belong to this direction."""
        return slice(self.direction * self.hidden, (self.direction + 1) * self.hidden)

    def threads(self) -> int:
        """The number of threads for this layer."""
        work = self.batch * self.gates * self.hidden * (self.columns + self.hidden)
        return min(threads.threads(work, _MULTIPLICATIONS_PER_THREAD), self.groups)

    @property
    def chunk(self) -> int:
        """Steps whose inputs are multiplied at once: several where the sequences are few."""
        if self.batch >= shape_of(jit.vector_width()).rows:
            return 1
        return min(self.steps, max(1, _CHUNK_ROWS // self.batch))

    @property
    def tile_rows(self) -> int:
        """Sequences that are computed at once.

        As many as a tile of the product has rows fit the L1 cache. Where the matrices do not fit
        the L2 caches, each is read once for more.
        """
        fits = 4 * self.gates * self.hidden * (self.columns + self.hidden) <= _CACHED_BYTES
        rows = shape_of(jit.vector_width()).rows
        return rows if fits else max(rows, min(self.batch, _MOST_TILE_ROWS))

    @property
    def rows_before(self) -> int:
        """Rows of a thread's memory for products of inputs."""
        return max(self.tile_rows, self.chunk * self.batch)

    def parameters(self, at: int) -> dict[str, int]:
        """Addresses of matrices and biases in a vector at address ``at``."""
        rows = self.gates * self.hidden
        return {
            "w": at + 4 * self.matrices, "r": at + 4 * (self.matrices + rows * self.columns),
            "bw": at + 4 * self.biases, "br": at + 4 * (self.biases + rows),
        }  # fmt: skip

    def sizes(self) -> dict[str, int]:
        """Words of the block that are sizes."""
        return {
            "steps": self.steps, "batch": self.batch, "columns": self.columns,
            "hidden": self.hidden, "y_row": 4 * self.directions * self.hidden,
            "cells_step": 4 * self.batch * self.hidden, "kept_step": 4 * prod(self.kept_shape[1:]),
            "chunk": self.chunk, "before_rows": self.rows_before,
            "tile_rows": self.tile_rows,
            "lanes": self.lanes, "examples": self.examples,
        }  # fmt: skip

    def steps_of(self, name: str, array: Array, first: int = 0) -> dict[str, int]:
        """Words for an array (time, batch, features): its address at column ``first``, its stride.

        The stride is from step to step, in bytes.
        """
        step = 4 * prod(array.shape[1:])
        begin = address(array) + 4 * first
        if not self.direction:
            return {name: begin, f"{name}_step": step}
        return {name: begin + (self.steps - 1) * step, f"{name}_step": -step}

    def results_of(self, name: str, array: Array) -> dict[str, int]:
        """:meth:`steps_of` for this direction's columns of the results."""
        return self.steps_of(name, array, self.direction * self.hidden)


def layers_of(op: Any, shape: Sequence[int]) -> list[list[RecurrentLayer]]:
    """The directions of each layer for an input of (time, [lanes], batch, features)."""
    steps, *parts, features = shape
    batch = prod(parts)
    lanes = parts[0] if len(parts) > 1 else 1
    layout: RNNShape = op.layout
    offsets, d = layout.block_offsets(features), layout.directions
    return [
        [
            RecurrentLayer(
                op.rnn_mode, steps, batch, int(layout.inputs_of(i, features)), op.hidden_size, k, d,
                *offsets[i * d + k], lanes,
            )
            for k in range(d)
        ]
        for i in range(layout.num_layers)
    ]  # fmt: skip


# -- scratch memory -------------------------------------------------------------------------------


def forward_floats(
    layer: RecurrentLayer, count: int, keeps: bool, in_pairs: bool = False, states: bool = False
) -> dict[str, int]:
    """Sizes of scratch memory in floats, by the words for their addresses."""
    width, columns = jit.vector_width(), layer.gates * layer.groups * WIDTH
    panel = panels(width, columns, count) * shape_of(width).columns
    row = count * (columns + WIDTH)
    gru = layer.mode == "gru"
    rows_in_pairs = layer.rows_before * layer.columns * in_pairs
    rows_in_pairs += layer.tile_rows * layer.hidden * states
    of_pairs = 2 * rows_in_pairs + SPILLED
    return {
        "packed_w": panel * layer.columns, "packed_r": panel * layer.hidden,
        "packed_pairs": columns * layer.columns // 2 * in_pairs,
        "bias": columns * (1 + gru), "packed_for": 2 * count, "before": row * layer.rows_before,
        "before_h": row * layer.tile_rows * gru,
        "cells": 0 if keeps else layer.batch * layer.hidden,
        "pairs": count * of_pairs // 4,
    }  # fmt: skip


def backward_floats(layer: RecurrentLayer, count: int) -> dict[str, int]:
    """:func:`forward_floats` of the backward pass."""
    width, slots = jit.vector_width(), GATE_SLOTS[layer.mode][0]
    panel, terms = shape_of(width).columns, layer.gates * layer.hidden
    block = block_steps(layer) * layer.examples * panel * count
    whole = -(-layer.columns // WIDTH) * WIDTH
    return {
        "packed_w": panels(width, whole, count) * panel * terms,
        "packed_r": panels(width, layer.groups * WIDTH, count) * panel * terms,
        "deltas": 3 * layer.batch * (slots * layer.hidden + WIDTH),
        "slots": layer.groups * layer.steps * layer.batch * slots * WIDTH,
        "packed_x": -(-layer.columns // panel) * block,
        "packed_h": -(-layer.hidden // panel) * block,
    }  # fmt: skip


def block_steps(layer: RecurrentLayer) -> int:
    """Steps of a block of the matrices' gradients."""
    return min(layer.steps, max(1, _BLOCK_TERMS // layer.examples))


def places_of(floats: dict[str, int]) -> tuple[dict[str, int], int]:
    """(offsets of all parts in bytes, total size); the counter of barriers comes first."""
    places, at = {"counter": 0}, 64
    for name, count in floats.items():
        places[name] = at
        at += aligned(4 * count)
    return places, at
