"""``nn.functional.embedding_bag`` against its definition, bag by bag, and the layer."""

from itertools import product

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, OptionError, TypeMismatch
from symdnn.nn import functional as F

MODES = ("sum", "mean", "max")


def by_bags(index, table, cotangent, bounds, mode, padding, weights):
    """The bags of ``index[a:b]``, and the gradient by the table for a ``cotangent``."""
    found, gradient = np.zeros((len(bounds), table.shape[1])), np.zeros_like(table)
    for bag, (a, b) in enumerate(bounds):
        kept = [i for i in range(a, b) if index[i] != padding]
        if not kept:
            continue
        if mode == "max":
            rows = table[index[kept]]
            found[bag] = rows.max(0)
            for column, best in enumerate(rows.argmax(0)):
                gradient[index[kept[best]], column] += cotangent[bag, column]
            continue
        for i in kept:
            share = weights[i] if mode == "sum" else 1 / len(kept)
            found[bag] += share * table[index[i]]
            gradient[index[i]] += share * cotangent[bag]
    return found, gradient


@pytest.mark.parametrize(
    ("mode", "padding", "last"), [*product(MODES, (None, 1, -2), (False, True))]
)
def test_bags_from_offset_to_offset(mode, padding, last, rng):
    index, table = rng.integers(0, 6, 11), rng.normal(size=(6, 3))
    index[4:7] = 1 if padding == 1 else 4  # a bag of nothing but padding
    offsets = np.array([0, 4, 7, 7, 9])
    ends = [*offsets[1:], 11]
    bounds = list(zip(offsets, ends))[:-1] if last else list(zip(offsets, ends))
    weights = rng.normal(size=11) if mode == "sum" else np.ones(11)
    c = rng.normal(size=(len(bounds), 3))
    x, o, w, s = T.lvector("x"), T.lvector("o"), T.dmatrix("w"), T.dvector("s")
    more = {"per_sample_weights": s} if mode == "sum" else {}
    y = F.embedding_bag(
        x, w, o, mode=mode, padding_idx=padding, include_last_offset=last, **more
    )  # fmt: skip
    f = symdnn.function([x, o, w, s], [y, T.grad((y * c).sum(), w)], on_unused_input="ignore")
    padded = None if padding is None else padding % 6
    wanted = by_bags(index, table, c, bounds, mode, padded, weights)
    for got, expected in zip(f(index, offsets, table, weights), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_bags_of_rows_are_those_of_the_layer(mode, rng):
    index = rng.integers(0, 6, (4, 5))
    layer = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=2)
    x = T.lmatrix("x")
    same = symdnn.function(
        [x], [layer(x), F.embedding_bag(x, layer.weight, mode=mode, padding_idx=2)]
    )
    np.testing.assert_allclose(*same(index), rtol=1e-6)


def test_what_is_refused():
    w = T.matrix("w")
    with pytest.raises(OptionError, match="wanted one of sum, mean, max"):
        F.embedding_bag(T.lmatrix(), w, mode="min")
    with pytest.raises(InputError, match="per_sample_weights are for mode='sum'"):
        F.embedding_bag(T.lmatrix(), w, per_sample_weights=T.matrix())
    with pytest.raises(TypeMismatch, match="a vector of integers, with offsets"):
        F.embedding_bag(T.lmatrix(), w, T.lvector())
