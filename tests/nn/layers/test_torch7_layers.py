"""Modules that are Torch7's alone, by its documentation's formulas in NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch

RNG = np.random.default_rng(6)
X, Y = RNG.standard_normal((2, 4, 3))
ROWS = RNG.standard_normal((5, 4, 3))
IMAGES = RNG.standard_normal((2, 3, 6, 7))
VOLUMES = RNG.standard_normal((2, 3, 5, 6, 7))


def run(module, *values, known=True):
    kinds = [
        T.TensorType(v.dtype.name, v.shape if known else (None,) * v.ndim)()
        for v in map(np.asarray, values)
    ]
    out = module(kinds if len(kinds) > 1 else kinds[0])
    return symdnn.function(kinds, out, on_unused_input="ignore")(*values)


def length(x, axis=-1, keepdims=False):
    return np.sqrt((x**2).sum(axis, keepdims=keepdims))


def double(kind, *arguments):
    return getattr(nn, kind)(*arguments, dtype="float64")


#: Name: (module, inputs, what it is of the inputs and the module's values).
CASES = {
    "Add": (double("Add", 3), [X], lambda x, bias: x + bias),
    "Add scalar": (double("Add", 3, True), [X], lambda x, bias: x + bias[0]),
    "CAdd": (double("CAdd", 4, 1), [ROWS], lambda x, bias: x + bias),
    "CMul": (double("CMul", 1, 3), [ROWS], lambda x, weight: x * weight),
    "Mul": (double("Mul"), [X], lambda x, weight: x * weight),
    "Normalize": (nn.Normalize(2), [X], lambda x: x / length(x, keepdims=True)),
    "Normalize 3": (nn.Normalize(3), [X], lambda x: x / np.cbrt((abs(x) ** 3).sum(1))[:, None]),
    "Normalize inf": (nn.Normalize(np.inf), [X[0]], lambda x: x / abs(x).max()),
    "CReLU": (nn.CReLU(1), [X], lambda x: np.maximum(np.concatenate([x, -x], 1), 0)),
    "CReLU alone": (nn.CReLU(3), [IMAGES[0]], lambda x: np.maximum(np.concatenate([x, -x]), 0)),
    "GatedLinearUnit": (
        nn.GatedLinearUnit(), [ROWS.swapaxes(1, 2)],
        lambda x: x[..., :2] / (1 + np.exp(-x[..., 2:])),
    ),
    "GradientReversal": (nn.GradientReversal(0.5), [X], lambda x: x),
    "Copy": (nn.Copy("torch.FloatTensor", "torch.CudaTensor"), [X], lambda x: x),
    "Constant": (nn.Constant(Y), [X], lambda x: Y),
    "Constant of a batch": (nn.Constant(Y, 1), [X], lambda x: np.stack([Y] * 4)),
    "OneHot": (nn.OneHot(4), [np.array([[3, 0], [1, 1]])], lambda x: np.eye(4)[x]),
    "Padding": (nn.Padding(0, 2, 1, 9.0), [X], lambda x: np.pad(
        x, ((0, 0), (0, 2)), constant_values=9)),
    "Padding before": (nn.Padding(0, -2), [X], lambda x: np.pad(x, ((2, 0), (0, 0)))),
    "Euclidean": (double("Euclidean", 3, 5), [X], lambda x, weight: length(
        x[:, :, None] - weight, 1)),
    "Euclidean alone": (double("Euclidean", 3, 5), [X[0]], lambda x, weight: length(
        x[:, None] - weight, 0)),
    "WeightedEuclidean": (
        double("WeightedEuclidean", 3, 5), [X],
        lambda x, weight, diagCov: length(diagCov * (x[:, :, None] - weight), 1),
    ),
    "Cosine": (double("Cosine", 3, 5), [X], lambda x, weight: (
        x @ weight.T / length(x, keepdims=True) / length(weight))),
    "Collapse": (nn.Collapse(3), [VOLUMES], lambda x: x.reshape(2, 3, -1)),
    "Collapse all": (nn.Collapse(2), [X], lambda x: x.reshape(-1)),
    "Maxout": (double("Maxout", 3, 4, 5), [X], lambda x, weight, bias: (
        x @ weight.T + bias).reshape(-1, 5, 4).max(1)),
    "Maxout alone": (double("Maxout", 3, 2, 2), [X[0]], lambda x, weight, bias: np.maximum(
        *(x @ weight.T + bias).reshape(2, 2))),
    "CAveTable": (nn.CAveTable(), [X, Y, X * Y], lambda *x: sum(x) / 3),
    "SpatialDepthWiseConvolution": (
        double("SpatialDepthWiseConvolution", 3, 2, 2, 3, 2, 1, 1), [IMAGES],
        lambda x, weight, bias: np.einsum(
            "ncyxhw,cohw->ncoyx", np.lib.stride_tricks.sliding_window_view(
                np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 2), (2, 3))[..., ::2, :, :],
            weight.reshape(3, 2, 3, 2)).reshape(2, 6, 6, -1) + bias[:, None, None],
    ),
    "DotProduct": (nn.DotProduct(), [X, Y], lambda x, y: (x * y).sum(1)),
    "CosineDistance": (nn.CosineDistance(), [X, Y], lambda x, y: (
        (x * y).sum(1) / length(x) / length(y))),
    "MV": (nn.MV(), [ROWS, RNG.standard_normal((5, 3))], lambda m, v: np.einsum(
        "bij,bj->bi", m, v)),
    "MV transposed": (nn.MV(True), [X, Y[:, 0]], lambda m, v: m.T @ v),
    "MaskedSelect": (nn.MaskedSelect(), [X, X > 0.2], lambda x, mask: x[mask]),
    "Index": (nn.Index(1), [X, np.array([2, 0, 2])], lambda x, i: x[:, i]),
    "MixtureTable of a tensor": (nn.MixtureTable(), [ROWS[:, :, 0], ROWS], lambda g, e: (
        np.einsum("be,bei->bi", g, e))),
    "MixtureTable of an axis": (nn.MixtureTable(2), [ROWS[:, 0], ROWS], lambda g, e: (
        np.einsum("be,bie->bi", g, e))),
    "Bottle": (nn.Bottle(double("Cosine", 3, 2)), [ROWS], lambda x, **named: (
        x @ named["module.weight"].T / length(x, keepdims=True) / length(named["module.weight"]))),
    "SpatialDilatedMaxPooling": (
        nn.SpatialDilatedMaxPooling(2, 1, 1, 1, 0, 0, 3, 1), [IMAGES],
        lambda x: np.maximum(x[..., :-3], x[..., 3:]),
    ),
    "VolumetricReplicationPadding": (
        nn.VolumetricReplicationPadding(1, 0, 2, 1, 0, 3), [VOLUMES],
        lambda x: np.pad(x, ((0, 0), (0, 0), (0, 3), (2, 1), (1, 0)), "edge"),
    ),
    "SpatialSubSampling": (
        double("SpatialSubSampling", 3, 2, 3, 2, 1), [IMAGES],
        lambda x, weight, bias: np.lib.stride_tricks.sliding_window_view(x, (3, 2), (2, 3))[
            :, :, :, ::2].sum((-2, -1)) * weight[:, None, None] + bias[:, None, None],
    ),
    "TemporalSubSampling": (
        double("TemporalSubSampling", 3, 2, 2), [ROWS],
        lambda x, weight, bias: (x[:, ::2] + x[:, 1::2]) * weight + bias,
    ),
    "WhiteNoise in evaluation": (nn.WhiteNoise(0.5, 2.0).evaluate(), [X], lambda x: x + 0.5),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_formula(name, known):
    module, values, formula = CASES[name]
    wanted = formula(*values, **module.state_dict())
    found = run(module, *values, known=known)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in CASES if n not in (
    "GradientReversal", "Copy", "Constant", "Constant of a batch", "OneHot", "MaskedSelect",
    "Index")])  # fmt: skip
def test_gradients_are_those_of_finite_differences(name):
    module, values, _ = CASES[name]
    T.verify_grad(
        lambda *x: module(list(x) if len(x) > 1 else x[0]), values, rng=np.random.default_rng(0)
    )


def test_tables_of_tables():
    a, b, c, d, e = T.dvectors("a", "b", "c", "d", "e")
    assert nn.ZipTable()([[a, b], [c, d]]) == [[a, c], [b, d]]
    assert nn.ZipTable()([a, b], [c, d], [e, a]) == [[a, c, e], [b, d, a]]
    assert nn.ZipTableOneToMany()([a, [b, c]]) == [[a, b], [a, c]]
    for module, given in ((nn.ZipTable(), [[a, b], [c]]), (nn.ZipTable(), [a, b]),
                          (nn.ZipTableOneToMany(), [a, b])):  # fmt: skip
        with pytest.raises(TypeMismatch, match="wanted a table of"):
            module(given)
    with pytest.raises(TypeMismatch, match="3 dimensions or more"):
        nn.Collapse(3)(T.dmatrix())


def test_a_mixture_of_a_table():
    gater, first, second = (T.dmatrix() for _ in range(3))
    f = symdnn.function([gater, first, second], nn.MixtureTable()([gater, [first, second]]))
    gates = X[:, :2]
    np.testing.assert_allclose(f(gates, X, Y), gates[:, :1] * X + gates[:, 1:] * Y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_in_training(dtype):
    x = T.TensorType(dtype, (None, None))()
    f = symdnn.function([x], nn.WhiteNoise(0.5, 2.0, seed=3)(x))
    zeros = np.zeros((100, 200), dtype)
    first, second = f(zeros), f(zeros)
    assert first.dtype == dtype
    assert (first != second).mean() > 0.99
    assert abs(first.mean() - 0.5) < 0.06
    assert abs(first.std() - 2) < 0.05


def test_gradients_are_reversed():
    x = T.dmatrix()
    layer = nn.GradientReversal(0.5)
    (found,) = symdnn.function([x], symdnn.grad((layer(x) ** 2).sum(), [x]))(X)
    np.testing.assert_allclose(found, -0.5 * 2 * X)
    (found,) = symdnn.function([x], symdnn.grad(layer.setLambda(2)(x).sum(), [x]))(X)
    np.testing.assert_allclose(found, np.full_like(X, -2.0))


@pytest.mark.parametrize("known", [True, False])
def test_outputs_of_other_sizes_are_joined_in_depth(known):
    crops = [
        nn.Identity(),
        nn.SpatialZeroPadding(-1, -1, -2, -1),
        nn.SpatialZeroPadding(0, -1, 0, 0),
    ]
    found = run(nn.DepthConcat(1, *crops), IMAGES, known=known)
    second = np.pad(IMAGES[:, :, 2:-1, 1:-1], ((0, 0), (0, 0), (1, 2), (1, 1)))
    third = np.pad(IMAGES[:, :, :, :-1], ((0, 0), (0, 0), (0, 0), (0, 1)))
    np.testing.assert_array_equal(found, np.concatenate([IMAGES, second, third], 1))


def test_dilated_convolutions_of_volumes():
    ours = nn.VolumetricDilatedConvolution(3, 2, 2, 3, 1, 1, 2, 1, 1, 0, 0, 2, 1, 3)
    same = nn.Conv3d(3, 2, (2, 1, 3), (1, 1, 2), (1, 0, 0), (2, 3, 1))
    same.load_state_dict(ours.state_dict())
    x = VOLUMES.astype("float32")
    np.testing.assert_array_equal(run(ours, x), run(same, x))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.CMul(-1), InputError, "sizes of 1 or more"),
        (lambda: nn.CAdd(4)(X), TypeMismatch, r"\(\.\.\., 4\)"),
        (lambda: nn.Euclidean(4, 2)(X), TypeMismatch, r"\(batch, 4\)"),
        (lambda: nn.Normalize(0), InputError, "more than 0"),
        (lambda: nn.DotProduct()(X), TypeMismatch, "table"),
        (lambda: nn.MV()(X, Y), TypeMismatch, "a matrix and a vector"),
        (lambda: nn.Padding(2, 1)(X), TypeMismatch, "an axis 2"),
        (lambda: nn.DepthConcat(1)(X), InputError, "no modules"),
        (lambda: nn.SpatialSubSampling(4, 2, 2)(IMAGES), TypeMismatch, "4 planes"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
