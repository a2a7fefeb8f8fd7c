"""``nn.functional`` against PyTorch: values and gradients."""

from functools import partial

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import ArgumentError, InputError, ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.nn import functional as F

torch = pytest.importorskip("torch")
theirs = torch.nn.functional


def drawn(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


IMAGES, ROWS, VOLUMES = drawn(2, 4, 6, 5), drawn(2, 4, 9), drawn(2, 4, 5, 4, 3)
SCORES, OTHERS = drawn(4, 5), drawn(5, 4).T
CLASSES = np.array([0, 2, 1, 4])
SHARES = (1 / (1 + np.exp(-drawn(4, 5)))).astype("float32")
BITS = (SHARES > 0.5).astype("float32")
SIGNS = 2 * BITS - 1


def same(ours, other, arrays, by=(0,), tolerance=2e-4):
    """Values, and gradients by the arrays numbered ``by``."""
    xs = [T.tensor(str(a.dtype), a.shape) for a in arrays]
    ts = [torch.tensor(np.ascontiguousarray(a)) for a in arrays]
    for i in by:
        ts[i].requires_grad_()
    y, z = ours(*xs), other(*ts)
    w = np.random.default_rng(1).normal(size=tuple(z.shape)).astype("float32")
    gradients = symdnn.grad((y * w).sum(), [xs[i] for i in by]) if by else []
    found = evaluate([y, *gradients], dict(zip(xs, arrays, strict=True)))
    np.testing.assert_allclose(found[0], z.detach().numpy(), tolerance, tolerance)
    if by:
        (z * torch.tensor(w)).sum().backward()
    for i, g in zip(by, found[1:], strict=True):
        np.testing.assert_allclose(g, ts[i].grad.numpy(), tolerance, tolerance)


LOSSES = [
    ("cross_entropy", [SCORES, CLASSES], {"label_smoothing": 0.1}),
    ("cross_entropy", [SCORES, CLASSES], {"reduction": "sum", "ignore_index": 2}),
    ("nll_loss", [SCORES, CLASSES], {}),
    ("mse_loss", [SCORES, OTHERS], {"reduction": "none"}),
    ("l1_loss", [SCORES, OTHERS], {}),
    ("smooth_l1_loss", [SCORES, OTHERS], {"beta": 0.5}),
    ("huber_loss", [SCORES, OTHERS], {"delta": 0.7}),
    ("binary_cross_entropy", [SHARES, BITS], {}),
    ("binary_cross_entropy_with_logits", [SCORES, BITS], {}),
    ("kl_div", [np.log(SHARES), SHARES], {"reduction": "batchmean"}),
    ("poisson_nll_loss", [SCORES, BITS], {}),
    ("gaussian_nll_loss", [SCORES, OTHERS, SHARES], {}),
    ("soft_margin_loss", [SCORES, SIGNS], {}),
    ("multilabel_soft_margin_loss", [SCORES, BITS], {}),
    ("multi_margin_loss", [SCORES, CLASSES], {}),
    ("triplet_margin_loss", [SCORES, OTHERS, SHARES], {"margin": 0.3}),
    ("triplet_margin_with_distance_loss", [SCORES, OTHERS, SHARES], {}),
    ("margin_ranking_loss", [SCORES, OTHERS, SIGNS], {}),
    ("cosine_embedding_loss", [SCORES, OTHERS, SIGNS[:, 0]], {}),
    ("hinge_embedding_loss", [SCORES, SIGNS], {}),
]
ELEMENTS = [
    ("relu", ()), ("leaky_relu", (0.2,)), ("elu", (1.3,)), ("selu", ()), ("celu", (1.2,)),
    ("gelu", ()), ("silu", ()), ("mish", ()), ("softplus", (2.0,)), ("softsign", ()),
    ("hardtanh", ()), ("hardswish", ()), ("hardsigmoid", ()), ("hardshrink", ()),
    ("softshrink", ()), ("tanhshrink", ()), ("logsigmoid", ()), ("relu6", ()), ("glu", (1,)),
    ("softmax", (1,)), ("log_softmax", (1,)), ("softmin", (1,)), ("normalize", ()),
    ("threshold", (0.1, 20.0)), ("rms_norm", ((5,),)), ("layer_norm", ((6, 5),)),
    ("instance_norm", ()), ("group_norm", (2,)), ("local_response_norm", (3,)),
    ("channel_shuffle", (2,)), ("pixel_shuffle", (2,)), ("sigmoid", ()), ("tanh", ()),
    ("max_pool2d", (2,)), ("max_pool2d", (3, 2, 1)), ("max_pool2d", (2, 1, 0, 2)),
    ("avg_pool2d", (2,)), ("avg_pool2d", (3, 2, 1, True, True, 4)), ("adaptive_avg_pool2d", (2,)),
    ("adaptive_max_pool2d", ((3, 2),)), ("interpolate", ((4, 7),)), ("pad", ((1, 2),)),
    ("pad", ((1, 2, 0, 1), "reflect")), ("pad", ((1, -1), "constant", 2.0)),
    ("unfold", (3, 1, 1)), ("lp_pool2d", (2.0, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arrays", "options"), LOSSES)
def test_losses(name, arrays, options):
    same(
        lambda *v: getattr(F, name)(*v, **options),
        lambda *v: getattr(theirs, name)(*v, **options),
        arrays,
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [{"size": (3, 7)}, {"scale_factor": 0.45}], ids=str)
def test_sizes_without_aliases(mode, size):
    options = {"mode": mode, "antialias": True, **size}
    same(
        lambda v: F.interpolate(v, **options), lambda v: theirs.interpolate(v, **options), [IMAGES]
    )
    corners = {**options, "align_corners": True}
    same(
        lambda v: F.interpolate(v, **corners), lambda v: theirs.interpolate(v, **corners), [IMAGES]
    )


@pytest.mark.parametrize(("name", "arguments"), ELEMENTS, ids=str)
def test_functions_of_images(name, arguments):
    same(
        lambda v: getattr(F, name)(v, *arguments),
        lambda v: getattr(theirs, name)(v, *arguments),
        [IMAGES],
    )


@pytest.mark.parametrize(("n", "x"), [(1, ROWS), (2, IMAGES), (3, VOLUMES)])
def test_convolutions(n, x):
    w, b, back = drawn(6, 2, *[3] * n), drawn(6), drawn(4, 3, *[2] * n)
    ours, other = getattr(F, f"conv{n}d"), getattr(theirs, f"conv{n}d")
    for more in ({"stride": 2, "padding": 1}, {"padding": "same"}):
        first, second = partial(ours, groups=2, **more), partial(other, groups=2, **more)
        same(first, second, [x, w, b], (0, 1, 2), 2e-3)
    ours, other = getattr(F, f"conv_transpose{n}d"), getattr(theirs, f"conv_transpose{n}d")
    options = {"stride": 2, "padding": 1, "output_padding": 1}
    same(lambda *v: ours(*v, **options), lambda *v: other(*v, **options), [x, back], (0, 1), 2e-3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    options = {"mode": mode, "padding_idx": 1}
    ours, other = partial(F.embedding_bag, **options), partial(theirs.embedding_bag, **options)
    index, offsets = np.random.default_rng(3).integers(0, 6, 11), np.array([0, 4, 4, 7])
    same(ours, other, [index, drawn(6, 3), offsets], (1,))
    same(ours, other, [index[:10].reshape(2, 5), drawn(6, 3)], (1,))


def test_tables_and_products():
    same(F.linear, theirs.linear, [drawn(3, 4), drawn(5, 4)], (0, 1))
    same(F.bilinear, theirs.bilinear, [drawn(3, 4), drawn(3, 5), drawn(2, 4, 5)], (0, 1, 2))
    index = np.array([[0, 1], [3, 1]])
    same(
        lambda i, w: F.embedding(i, w, padding_idx=1),
        lambda i, w: theirs.embedding(i, w, padding_idx=1),
        [index, drawn(4, 3)],
        (1,),
    )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling(mode, outside, align):
    grid = np.random.default_rng(2).uniform(-1.2, 1.2, (2, 5, 7, 2)).astype("float32")
    same(
        lambda x, g: F.grid_sample(x, g, mode, outside, align),
        lambda x, g: theirs.grid_sample(x, g, mode, outside, align),
        [IMAGES, grid],
        (0,) if mode == "nearest" else (0, 1),
        2e-3,
    )
    same(
        lambda t: F.affine_grid(t, (2, 4, 5, 7), align),
        lambda t: theirs.affine_grid(t, (2, 4, 5, 7), align),
        [drawn(2, 2, 3)],
    )


def test_batch_norm_updates_its_statistics():
    mean, var = nn.Parameter(np.zeros(4)), nn.Parameter(np.ones(4))
    x = T.tensor4("x")
    y = F.batch_norm(x, mean, var, training=True)
    symdnn.function([x], y, updates=nn.state_updates(y))(IMAGES)
    kept = torch.zeros(4), torch.ones(4)
    theirs.batch_norm(torch.tensor(IMAGES), *kept, training=True)
    np.testing.assert_allclose(mean.get_value(), kept[0].numpy(), 1e-4, 1e-5)
    np.testing.assert_allclose(var.get_value(), kept[1].numpy(), 1e-4, 1e-5)


def test_instance_norm_has_running_statistics():
    """They move with those of the input, and normalise without."""
    start, weight = [drawn(4), np.abs(drawn(4)) + 0.5], drawn(4)
    kept, own = [torch.tensor(a) for a in start], [nn.Parameter(a) for a in start]
    x = T.tensor4("x")
    y = F.instance_norm(x, *own, T.constant(weight), momentum=0.3)
    z = F.instance_norm(x, *own, T.constant(weight), use_input_stats=False)
    f = symdnn.function([x], [y, z], updates=nn.state_updates(y))
    for n in (2, 1):
        given, w = IMAGES[:n], torch.tensor(weight)
        fixed = theirs.instance_norm(torch.tensor(given), *kept, w, use_input_stats=False)
        moving = theirs.instance_norm(torch.tensor(given), *kept, w, momentum=0.3)
        for found, wanted in zip(f(given), (moving, fixed), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), 1e-4, 1e-4)
    for a, b in zip(own, kept, strict=True):
        np.testing.assert_allclose(a.get_value(), b.numpy(), 1e-4, 1e-5)
    with pytest.raises(InputError, match="wanted running_mean and running_var"):
        F.instance_norm(x, use_input_stats=False)


def test_random_functions():
    ones = T.constant(np.ones((100, 10), "float32"))
    assert set(np.unique(F.dropout(ones).eval())) == {0, 2}
    assert F.dropout(ones, training=False) is ones
    hard = F.gumbel_softmax(T.constant(SCORES), hard=True).eval()
    np.testing.assert_allclose(hard.sum(axis=1), 1, 1e-5)
    assert F.one_hot(T.constant([0, 2]), 3).eval().tolist() == [[1, 0, 0], [0, 0, 1]]


def test_what_is_wrong_is_said():
    with pytest.raises(ArgumentError, match=r"mse_loss: wanted input, target; target is missing"):
        F.mse_loss(T.matrix("x"))
    with pytest.raises(InputError, match="one_hot: wanted num_classes"):
        F.one_hot(T.ivector("i"))
    with pytest.raises(InputError, match="wanted running_mean and running_var"):
        F.batch_norm(T.matrix("x"), None, None)


def test_batch_norm_without_weights_leaves_an_infinity_where_it_is():
    x = T.tensor4("x")
    values = drawn(2, 3, 2, 2)
    values[0, :, 0, 0] = np.inf
    mean, var = np.zeros(3, "float32"), np.ones(3, "float32")
    y = symdnn.function([x], F.batch_norm(x, mean, var))(values)
    wanted = theirs.batch_norm(torch.tensor(values), torch.tensor(mean), torch.tensor(var))
    np.testing.assert_allclose(y, wanted.numpy(), 1e-5)


ONE = np.ones(1, "float32")
CHANNELS = np.ones(4, "float32")


@pytest.mark.parametrize(
    "call",
    [
        lambda m, a: m.layer_norm(a(SCORES), (5,), a(ONE), a(ONE)),
        lambda m, a: m.rms_norm(a(SCORES), (5,), a(ONE)),
        lambda m, a: m.batch_norm(a(IMAGES), a(ONE), a(ONE)),
        lambda m, a: m.batch_norm(a(IMAGES), a(CHANNELS), a(CHANNELS), a(ONE), a(CHANNELS)),
        lambda m, a: m.instance_norm(a(ROWS), None, None, a(ONE), a(ONE)),
        lambda m, a: m.conv2d(a(IMAGES), a(drawn(3, 4, 2, 2)), a(ONE)),
        lambda m, a: m.conv_transpose1d(a(ROWS), a(drawn(4, 3, 2)), a(ONE)),
        lambda m, a: m.grid_sample(a(IMAGES), a(drawn(1, 3, 3, 2)), align_corners=False),
        lambda m, a: m.multi_margin_loss(a(SCORES), a(CLASSES[:1])),
        lambda m, a: m.multilabel_margin_loss(a(SCORES), a(CLASSES[:, None])),
        lambda m, a: m.embedding_bag(
            a(CLASSES), a(SCORES[[0, 1, 2, 3, 0]]), a(CLASSES[:1]), mode="sum",
            per_sample_weights=a(ONE),
        ),
    ],
)  # fmt: skip
def test_a_size_of_one_is_not_spread_where_pytorch_refuses_it(call):
    with pytest.raises((RuntimeError, ValueError)):
        call(theirs, torch.tensor)
    with pytest.raises(ShapeMismatch):
        call(F, T.constant)


def test_a_size_of_one_is_found_where_the_other_one_is_known_in_a_call():
    x = T.matrix("x")
    f = symdnn.function([x], F.multi_margin_loss(x, T.constant(CLASSES[:1])))
    np.testing.assert_allclose(
        f(SCORES[:1]),
        theirs.multi_margin_loss(torch.tensor(SCORES[:1]), torch.tensor(CLASSES[:1])),
        1e-5,
    )
    with pytest.raises(ShapeMismatch):
        f(SCORES)
