"""Batches of arrays: order, last ones, transforms, going on in the middle."""

import numpy as np
import pytest

from symdnn import nn
from symdnn.errors import DimensionMismatch, InputError

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def test_structures_are_kept():
    one = list(nn.batches(X, 4))
    assert [b.shape for b in one] == [(4, 2), (4, 2), (2, 2)]
    assert np.shares_memory(one[0], X)
    several = list(nn.batches([X, Y], 4, drop_last=True))
    assert len(several) == len(nn.batches([X, Y], 4, drop_last=True)) == 2
    for x, y in several:
        np.testing.assert_array_equal(x[:, 0], 2 * y)
    for batch in nn.batches({"x": X, "y": Y}, 3, shuffle=True):
        assert list(batch) == ["x", "y"]
        np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["y"])


def test_each_epoch_has_all_samples_in_another_order():
    data = nn.batches(Y, 3, shuffle=True, seed=5)
    epochs = [np.concatenate(list(data)) for _ in range(3)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), Y)
    assert len({tuple(e) for e in epochs}) == 3
    again = nn.batches(Y, 3, shuffle=True, seed=5)
    for i, epoch in enumerate(epochs):
        np.testing.assert_array_equal(np.concatenate(list(again)), epoch)
        np.testing.assert_array_equal(np.concatenate(list(data.at(i))), epoch)
    assert tuple(np.concatenate(list(nn.batches(Y, 3, True, seed=6)))) != tuple(epochs[0])


def noisy(batch, rng):
    return batch + rng.normal(size=batch.shape)


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6])
def test_going_on_gives_the_same_bits(taken):
    def make(seed):
        return nn.batches(Y, 3, shuffle=True, seed=seed, transform=noisy)

    def stream(data):
        while True:
            yield from data

    first = make(1)
    whole = stream(make(1))
    wanted = [next(whole) for _ in range(12)]
    running = stream(first)
    for _ in range(taken):
        next(running)
    other = make(2)
    other.load_state_dict(first.state_dict())
    going = stream(other)
    for value in wanted[taken:]:
        np.testing.assert_array_equal(next(going), value)


def test_seeds_come_from_the_layers_generator():
    orders = []
    for _ in range(2):
        nn.init.seed(3)
        orders.append(np.concatenate(list(nn.batches(Y, 5, shuffle=True))))
    np.testing.assert_array_equal(*orders)


def test_bad_arguments():
    with pytest.raises(DimensionMismatch, match="0 has 10, 1 has 9"):
        nn.batches((Y, Y[:9]), 2)
    with pytest.raises(DimensionMismatch, match="x has 10, y has 9"):
        nn.batches({"x": Y, "y": Y[:9]}, 2)
    with pytest.raises(InputError, match="size=0; wanted an int"):
        nn.batches(Y, 0)
    with pytest.raises(InputError, match="10 samples make no batch of 11"):
        nn.batches(Y, 11, drop_last=True)
    with pytest.raises(InputError, match="0 is no array"):
        nn.batches(3.0, 2)
    with pytest.raises(InputError, match="got none"):
        nn.batches([], 2)
