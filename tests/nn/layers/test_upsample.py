"""Upsample by NumPy's formulas, and against PyTorch where it is installed."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from tests.seeded import sampled


def applied(module, x, shape=None):
    v = T.TensorType("float32", shape or (None,) * x.ndim)()
    return symdnn.function([v], module(v))(x)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("options", [{"size": 7}, {"scale_factor": 2.5}, {"size": 3}], ids=str)
def test_linear_is_numpys_interp(options, corners, rng):
    x = rng.normal(size=(2, 3, 5)).astype("float32")
    found = applied(nn.Upsample(**options, mode="linear", align_corners=corners), x)
    new = options.get("size") or 12
    step = 4 / (new - 1) if corners else (1 / 2.5 if "scale_factor" in options else 5 / new)
    at = np.arange(new) * step if corners else (np.arange(new) + 0.5) * step - 0.5
    wanted = np.array([[np.interp(at, np.arange(5), row) for row in image] for image in x])
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("corners", [False, True])
def test_positions_have_the_digits_of_the_input(corners, rng):
    x = rng.normal(size=(1, 1, 7))
    v = T.dtensor3()
    layer = nn.Upsample(19, mode="linear", align_corners=corners)
    at = np.arange(19) * 6 / 18 if corners else (np.arange(19) + 0.5) * 7 / 19 - 0.5
    found = symdnn.function([v], layer(v))(x)[0, 0]
    np.testing.assert_allclose(found, np.interp(at, np.arange(7), x[0, 0]), rtol=1e-13, atol=1e-14)


def test_corners_are_kept_and_planes_are_exact():
    rows, columns = np.meshgrid(np.arange(4.0), np.arange(5.0), indexing="ij")
    x = (2 * rows - columns)[None, None].astype("float32")
    fine = np.meshgrid(np.linspace(0, 3, 7), np.linspace(0, 4, 9), indexing="ij")
    for mode in ("bilinear", "bicubic"):
        y = applied(nn.Upsample((7, 9), mode=mode, align_corners=True), x)[0, 0]
        inner = (slice(2, -2), slice(2, -2)) if mode == "bicubic" else (...,)
        np.testing.assert_allclose(y[inner], (2 * fine[0] - fine[1])[inner], 1e-4, 1e-4)
        np.testing.assert_allclose(y[[0, 0, -1, -1], [0, -1, 0, -1]], [0, -4, 6, 2], atol=1e-4)


def test_nearest_takes_elements():
    x = np.arange(5, dtype="float32")[None, None]
    for size in (1, 3, 7, 10):
        wanted = x[:, :, np.arange(size) * 5 // size]
        np.testing.assert_array_equal(applied(nn.Upsample(size), x), wanted)
        exact = x[:, :, np.floor((np.arange(size) + 0.5) * 5 / size).astype(int)]
        found = applied(nn.Upsample(size, mode="nearest-exact"), x)
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("ndim", "factors"), [(1, (3,)), (2, (2, 1)), (2, (5, 2)), (3, (2, 3, 2))])
def test_whole_factors_repeat_and_gather_nothing(ndim, factors, static, mode, rng):
    """It is the gradient of a sum over windows, which no gather or scatter needs."""
    x = rng.normal(size=(2, 3, 4, 3, 2)[: 2 + ndim]).astype("float32")
    v = T.TensorType("float32", x.shape if static else (None,) * x.ndim)()
    y = nn.Upsample(scale_factor=factors, mode=mode)(v)
    f = symdnn.function([v], [y, T.grad((y * T.cos(y)).sum(), v)])
    wanted = x
    for axis, k in enumerate(factors, 2):
        wanted = wanted.repeat(k, axis)
    found, slope = f(x)
    np.testing.assert_array_equal(found, wanted)
    count = np.prod(factors)
    np.testing.assert_allclose(slope, count * (np.cos(x) - x * np.sin(x)), 1e-4, 1e-5)
    assert not any("Advanced" in type(n.op).__name__ for n in f.fgraph.toposort())


@pytest.mark.parametrize(
    ("options", "shape"),
    [({"size": 7}, (1, 1, 3)), ({"scale_factor": 2.5}, (1, 1, 4)), ({"size": 4}, (None,) * 3),
     ({"scale_factor": 17}, (1, 1, 2))],
    ids=str,
)  # fmt: skip
def test_other_factors_take_elements_by_their_positions(options, shape):
    v = T.TensorType("float32", shape)()
    f = symdnn.function([v], nn.Upsample(**options)(v))
    x = np.arange(3 if shape[2] is None else shape[2], dtype="float32")[None, None]
    n = f(x).shape[2]
    step = 1 / options["scale_factor"] if "scale_factor" in options else x.shape[2] / n
    np.testing.assert_array_equal(f(x)[0, 0], np.floor(np.arange(n) * step))


@pytest.mark.parametrize("n", [4, None])
def test_an_axis_that_keeps_its_size_keeps_its_elements(n, rng):
    """As in PyTorch, whatever the factor is that was rounded down to this size."""
    v = T.TensorType("float32", (2, 3, n))()
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    f = symdnn.function([v], nn.Upsample(scale_factor=1.2, mode="linear")(v))
    np.testing.assert_array_equal(f(x), x)


def test_gradient(rng):
    module = nn.Upsample((5, 3), mode="bicubic")
    symdnn.verify_grad(module, [rng.normal(size=(1, 2, 4, 4))], rng=rng)


def test_static_sizes_give_static_sizes():
    y = nn.Upsample(scale_factor=1.5, mode="bilinear")(T.tensor("float32", (2, 3, 4, 5)))
    assert y.type.shape == (2, 3, 6, 7)
    assert repr(nn.UpsamplingBilinear2d((4, 5))).endswith("(size=(4, 5), bilinear, align_corners)")


def test_what_does_not_fit():
    for call in (
        lambda: nn.Upsample(), lambda: nn.Upsample(2, 2.0), lambda: nn.Upsample(2, mode="x"),
        lambda: nn.Upsample(2, align_corners=True), lambda: nn.Upsample(0),
        lambda: nn.Upsample(scale_factor=float("nan")), lambda: nn.Upsample(1.5),
    ):  # fmt: skip
        with pytest.raises(InputError):
            call()
    for module in (nn.Upsample(2, mode="linear"), nn.Upsample((2, 3, 4))):
        with pytest.raises(TypeMismatch):
            module(T.ftensor4())


MODES = {3: ("nearest", "nearest-exact", "linear"), 4: ("nearest", "bilinear", "bicubic"),
         5: ("nearest-exact", "trilinear")}  # fmt: skip
CASES = [(ndim, mode, corners) for ndim, modes in MODES.items() for mode in modes
         for corners in ((None,) if "nearest" in mode else (False, True))]  # fmt: skip


@pytest.mark.parametrize(("ndim", "mode", "corners"), sampled(CASES, every=3))
@pytest.mark.parametrize(
    "options",
    [{"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": 6},
     {"scale_factor": 1.1}, {"scale_factor": 1.7, "recompute_scale_factor": True}],
    ids=str,
)  # fmt: skip
def test_values_and_gradients_are_those_of_pytorch(ndim, mode, corners, options, rng):
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(2, 3, 5, 4, 6)[:ndim]).astype("float32")
    options = {**options, "mode": mode, "align_corners": corners}
    given = torch.tensor(x, requires_grad=True)
    wanted = torch.nn.Upsample(**options)(given)
    (wanted**2).sum().backward()
    v = T.TensorType("float32", (None,) * ndim)()
    y = nn.Upsample(**options)(v)
    found, dx = symdnn.function([v], [y, symdnn.grad(T.sqr(y).sum(), v)])(x)
    np.testing.assert_allclose(found, wanted.detach().numpy(), 1e-3, 1e-4)
    np.testing.assert_allclose(dx, given.grad.numpy(), 1e-3, 1e-3)


def filters(n, m, mode, corners, step):
    """The weights (m, n) of antialiasing, from one result to the next ``step`` apart."""
    d = np.abs((np.arange(n) + 0.5 - step * (np.arange(m)[:, None] + 0.5)) / max(step, 1))
    if mode == "bilinear":
        w = np.maximum(1 - d, 0)
    else:  # Keys 1981 with a = -0.5
        w = np.where(d < 1, 1.5 * d**3 - 2.5 * d**2 + 1, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2)
        w = np.where(d < 2, w, 0)
    return w / w.sum(1, keepdims=True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_results_without_aliases_are_averages(mode, corners, known, rng):
    x = rng.normal(size=(2, 3, 13, 11))
    v = T.TensorType("float64", x.shape if known else (None,) * 4)()
    for options in ({"size": (5, 4)}, {"size": (20, 1)}, {"scale_factor": (0.37, 1.7)}):
        if corners and "size" not in options:
            continue
        new = options.get("size") or (4, 18)
        steps = [1 / s for s in options.get("scale_factor", ())] or [
            ((n - 1) / (m - 1) if m > 1 else 0) if corners else n / m
            for n, m in zip((13, 11), new, strict=True)
        ]
        y = nn.functional.interpolate(
            v, mode=mode, align_corners=corners, antialias=True, **options
        )  # fmt: skip
        rows, columns = (
            filters(n, m, mode, corners, s) for n, m, s in zip((13, 11), new, steps, strict=True)
        )
        c = rng.normal(size=(2, 3, *new))
        found, gradient = symdnn.function([v], [y, T.grad((y * c).sum(), v)])(x)
        np.testing.assert_allclose(found, rows @ x @ columns.T, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(gradient, rows.T @ c @ columns, rtol=1e-11, atol=1e-12)


def test_stripes_have_no_aliases():
    stripes = np.tile([1.0, -1.0], 32)[None, None, None].repeat(64, 2).astype("float32")
    v = T.TensorType("float32", stripes.shape)()
    for mode in ("bilinear", "bicubic"):
        layer = nn.Upsample(9, mode=mode, antialias=True)
        y = symdnn.function([v], layer(v))(stripes)
        assert np.abs(y[..., 1:-1]).max() < 0.02
        assert repr(layer).endswith("antialias)")
    with pytest.raises(ValueError, match="antialias is of bilinear and bicubic"):
        nn.Upsample(9, antialias=True)
