"""Layers that PyTorch alone has against its values, stored by make_torch_layers_alone.py."""

import math
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import SymdnnError
from tests.nn.torch_layer_cases import CASES
from tests.seeded import sampled

STORED = np.load(Path(__file__).parents[1] / "torch_layers_alone.npz")


def stored(name, begin):
    return {
        k[len(f"{name}/{begin}") :]: STORED[k] for k in STORED if k.startswith(f"{name}/{begin}")
    }


@pytest.mark.parametrize("name", sampled(list(CASES), every=2))
def test_values_and_gradients_are_those_of_pytorch(name):
    kind, args, options, shapes = CASES[name]
    layer = getattr(nn, kind)(*args, **options)
    layer.load_state_dict(stored(name, "weights/"))
    values = list(stored(name, "x").values())
    xs = [T.TensorType("float32", (None,) * len(s))() for s in shapes]
    found = layer(*xs)
    outs = found if isinstance(found, list) else [found]
    loss = sum(T.sqr(o).sum() for o in outs)
    f = symdnn.function(xs, [*outs, *T.grad(loss, xs)])
    got = f(*values)
    wanted = [*stored(name, "y").values(), *stored(name, "dx").values()]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "layer", [nn.CELU(0.3), nn.CELU(1e-3), nn.Softplus(10), nn.Softplus(1e3)], ids=str
)
def test_activations_of_large_numbers_are_these_numbers(layer, dtype):
    """Whatever the function is scaled by: neither the product nor the quotient overflows."""
    most = 6e4 if dtype == "float16" else 3e38 if dtype != "float64" else 1e308
    value = T.constant([7.3, 1e3, most / 3, most]).astype(dtype).eval()
    x = T.TensorType(dtype, (None,))()
    y = layer(x)
    found, slope = symdnn.function([x], [y, T.grad(y.sum(), x)])(value)
    np.testing.assert_array_equal(found, value)
    np.testing.assert_array_equal(slope.astype("float32"), np.ones(4))


def test_a_cell_over_the_steps_of_a_sequence_is_the_layer(rng):
    cell, x = nn.LSTMCell(4, 5), T.ftensor3("x")
    zero = T.zeros((x.shape[1], 5), "float32")
    (h, _), _ = symdnn.scan(lambda v, h, c: cell(v, (h, c)), x, outputs_info=[zero, zero])
    layer = nn.LSTM(4, 5, 1)
    nn.load_torch(layer, {f"{n}_l0": p.get_value() for n, p in cell.named_parameters().items()})
    f = symdnn.function([x], [h, layer(x)])
    a, b = f(rng.normal(size=(6, 3, 4)).astype("float32"))
    np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    assert nn.LSTMCell(4, 5).weight_ih.name == "weight_ih"


def test_gated_units_are_those_of_shazeer(rng):
    value = rng.normal(size=(3, 8)).astype("float32")
    a, b = value[:, :4], value[:, 4:].astype("float64")
    normal = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in b.ravel()]).reshape(b.shape)
    gates = {
        nn.GLU: 1 / (1 + np.exp(-b)), nn.ReGLU: np.maximum(b, 0), nn.GEGLU: b * normal,
        nn.SwiGLU: b / (1 + np.exp(-b)),
    }  # fmt: skip
    x = T.fmatrix()
    for kind, gate in gates.items():
        np.testing.assert_allclose(symdnn.function([x], kind()(x))(value), a * gate, 1e-4, 1e-5)
        turned = symdnn.function([x], kind(0)(x))(value.T)
        np.testing.assert_allclose(turned, (a * gate).T, 1e-4, 1e-5)
    symdnn.verify_grad(nn.SwiGLU(), [rng.normal(size=(2, 6))], rng=rng)


def test_pixels_of_images_alone_and_of_several_leading_axes(rng):
    value = rng.normal(size=(2, 3, 8, 4, 6)).astype("float32")
    x, image = T.TensorType("float32", (None,) * 5)(), T.ftensor3()
    for module in (nn.PixelShuffle(2), nn.PixelUnshuffle(2)):
        y = symdnn.function([x], module(x))(value)
        alone = symdnn.function([image], module(image))(value[1, 2])
        np.testing.assert_array_equal(y[1, 2], alone)
    back = nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x))
    np.testing.assert_array_equal(symdnn.function([x], back)(value), value)


@pytest.mark.parametrize("kind", ["ZeroPad", "ConstantPad"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_constant_padding_by_negative_numbers_cuts_off(kind, ndim, rng):
    """As that of ``functional.pad``."""
    value = rng.normal(size=(2, 3, 5, 6, 7)[: 2 + ndim]).astype("float32")
    widths, number = (-1, 2, 1, -2, -1, -1)[: 2 * ndim], () if kind == "ZeroPad" else (1.5,)
    x = T.tensor("float32", value.shape)
    module = getattr(nn, f"{kind}{ndim}d")(widths, *number)
    wanted = nn.functional.pad(x, widths, value=number[0] if number else 0)
    found, same = symdnn.function([x], [module(x), wanted])(value)
    np.testing.assert_array_equal(found, same)


def test_what_does_not_fit():
    x = T.fmatrix()
    for call in (
        lambda: nn.PixelShuffle(2)(x), lambda: nn.ZeroPad3d(1)(x), lambda: nn.ReflectionPad1d(-1),
        lambda: nn.GLU(5)(x), lambda: nn.GLU()(T.tensor("float32", (2, 3))),
        lambda: nn.PixelShuffle(2)(T.tensor("float32", (6, 4, 4))),
        lambda: nn.PixelUnshuffle(2)(T.tensor("float32", (6, 3, 4))),
        lambda: nn.Unflatten(5, (2,))(x), lambda: nn.Unflatten(0, ()),
        lambda: nn.RMSNorm(3)(T.fvector()[:2].reshape((2,))), lambda: nn.CELU(0),
        lambda: nn.RNNCell(3, 4, nonlinearity="x"), lambda: nn.LSTMCell(3, 4)(x, x),
        lambda: nn.PairwiseDistance(0), lambda: nn.PairwiseDistance()([x]),
        lambda: nn.CosineSimilarity()(x),
    ):  # fmt: skip
        with pytest.raises(SymdnnError):
            call()


@pytest.mark.parametrize("p", [1, 3, math.inf])
def test_distances_by_the_norm_of_any_order(p, rng):
    a, b = rng.normal(size=(2, 4, 5))
    x, y = T.dmatrices(2)
    found = symdnn.function([x, y], nn.PairwiseDistance(p, eps=0)(x, y))(a, b)
    np.testing.assert_allclose(found, np.linalg.norm(a - b, p, axis=1))


@pytest.mark.parametrize("kind", [nn.PairwiseDistance, nn.CosineSimilarity])
def test_distances_take_a_table_as_in_torch7(kind, rng):
    x, y = T.dmatrices(2)
    apart, table = symdnn.function([x, y], [kind()(x, y), kind()([x, y])])(
        *rng.normal(size=(2, 3, 4))
    )
    np.testing.assert_array_equal(apart, table)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_states_of_cells_begin_with_zeros_whatever_the_input(kind):
    x, cell = T.matrix("x"), kind(3, 4)
    zeros = T.zeros((2, 4))
    states = (zeros, zeros) if kind is nn.LSTMCell else zeros
    both = [cell(x), cell(x, states)]
    both = [v[0] if isinstance(v, list) else v for v in both]
    row = np.array([[np.inf, 1, 2], [1, 2, 3]], "float32")
    np.testing.assert_array_equal(*symdnn.function([x], both)(row))


@pytest.mark.parametrize("shape", [(1, 4), (2, 1)])
def test_the_state_of_a_cell_has_its_sizes(shape):
    x = T.zeros((2, 3))
    for kind in (nn.RNNCell, nn.GRUCell):
        with pytest.raises(SymdnnError, match=rf"{kind.__name__}: the state: wanted .*\(2, 4\)"):
            kind(3, 4)(x, T.zeros(shape))
