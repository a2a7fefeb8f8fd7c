"""Need 6: a recurrent net's weights are packed, named, unpacked exactly, and PyTorch's come in."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
from symdnn.ops.nn.rnn import RNNBlock
from symdnn.ops.nn.rnn_params import GATES
from tests.nn.formats import test_torch
from tests.op_table.rnn import named, slow_rnn
from tests.ops.nn.test_rnn import arrays, shared

grid = [
    pytest.mark.parametrize("mode", list(GATES)),
    pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"]),
    pytest.mark.parametrize("layers", [1, 2, 3]),
]


def on_grid(test):
    for mark in grid:
        test = mark(test)
    return test


@on_grid
def test_split_and_pack_are_inverse_bit_by_bit(mode, direction, layers):
    block = RNNBlock("float32", 5, layers, mode, direction_mode=direction)
    values = np.random.default_rng(1).random(block.get_param_size([2, 4]), "float32")
    w = shared(values)
    count = layers * block.layout.directions
    split = [block.split_params(w, i, [2, 4]) for i in range(count)]
    np.testing.assert_array_equal(block.pack_params(split, 4), values)
    np.testing.assert_array_equal(block.pack_params(block.named_params(w, 4), 4), values)
    split[0][0][...] = 7  # a view, not a copy
    assert np.count_nonzero(w.get_value() == 7) == split[0][0].size


@on_grid
def test_the_result_is_that_of_a_loop_over_the_named_matrices(mode, direction, layers):
    block = RNNBlock("float64", 3, layers, mode, direction_mode=direction)
    given = arrays(block, steps=4, features=2)
    got = symdnn.function([], block.apply(*given))()
    want = slow_rnn(block.layout, *given)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    names = block.named_params(shared(given[0]), 2)  # as that loop reads the vector
    for (layer, back, kind, gate), part in named(given[0], block.layout, 2).items():
        name = f"layer{layer}{'.reverse' * back}.{kind}_{gate}"
        np.testing.assert_array_equal(names[name], part)


@pytest.mark.parametrize("kind", ["RNNReLU", "RNNTanh", "LSTM", "GRU", "BLSTM", "BGRU"])
def test_a_state_dict_of_pytorch_gives_its_output(kind):
    """Recorded by ``tests/nn/make_torch_rnn.py``."""
    test_torch.test_gates_layers_and_directions_are_pytorchs(kind)
