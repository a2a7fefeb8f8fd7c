"""Known networks: their published numbers of parameters and names, PyTorch's values, training."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from symdnn.nn import models
from symdnn.nn.formats.torch import torch_slots
from tests.nn.drawn_weights import direction, drawn, images, names_hash
from tests.seeded import sampled

STORED = np.load(Path(__file__).parent / "torch_models.npz")
CLASSES, HIDDEN, WORDS = 10, 24, 30

# What the papers, torchvision's pages or Caffe's model zoo say.
COUNTS = {
    "lenet": 431_080, "lenet5": 61_706,
    "alexnet": 61_100_840, "alexnet_grouped": 60_965_224,
    "vgg16": 138_357_544, "vgg16_bn": 138_365_992, "vgg19": 143_667_240, "vgg19_bn": 143_678_248,
    "googlenet": 6_624_904, "googlenet_aux": 13_004_888,
    "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032,
    "resnet101": 44_549_160, "resnet152": 60_192_808,
    "densenet121": 7_978_856, "unet": 31_037_698,
    "mobilenet_v2": 3_504_872, "mobilenet_v3_large": 5_483_032, "mobilenet_v3_small": 2_542_856,
    "efficientnet_b0": 5_288_548, "convnext_tiny": 28_589_128,
}  # fmt: skip
OPTIONS = {"_bn": {"batch_norm": True}, "_aux": {"auxiliary": True}}


def built(name):
    """A whole network, its values left at zero."""
    ending = next((e for e in OPTIONS if name.endswith(e)), "")
    with nn.init.skipped():
        return getattr(models, name.removesuffix(ending))(**OPTIONS.get(ending, {}))


def count(net):
    return sum(p.get_value(borrow=True).size for p in net.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_the_published_number_of_parameters(name):
    assert count(built(name)) == COUNTS[name]


def test_the_language_models_of_zaremba():
    def wanted(words, n):  # embedding, two layers of four gates with two biases, scores
        return words * n + 2 * 4 * (2 * n * n + 2 * n) + (n + 1) * words

    with nn.init.skipped():
        for n in (200, 650):
            assert count(models.lstm_lm(10000, n, n)) == wanted(10000, n)
        assert count(models.lstm_lm()) == 19_780_400  # the paper's 20 million
        tied = models.lstm_lm(100, 20, 20, tied=True)
    assert count(tied) == wanted(100, 20) - 100 * 20


@pytest.mark.parametrize("name", [k.partition("/")[0] for k in STORED if k.endswith("/state")])
def test_names_and_shapes_are_torchvisions(name):
    net = built(name)
    named = {**net.named_parameters(), **net.named_buffers()}
    shapes = {n: v.get_value(borrow=True).shape for n, v in named.items()}
    assert names_hash(shapes) == int(STORED[f"{name}/state"])


def small(name):
    """The network that PyTorch's values were made with, without dropout; and its input."""
    x, narrow = images(4, 3, 64, 64), {"dropout": 0.0, "hidden": HIDDEN}
    tokens = np.random.RandomState(1).randint(0, WORDS, (5, 3))
    makers = {
        "alexnet": lambda: (models.alexnet(CLASSES, **narrow), x),
        "alexnet_grouped": lambda: (
            nn.Sequential(*models.alexnet_grouped().modules[:15]), images(2, 3, 99, 99)),
        "vgg16": lambda: (models.vgg16(CLASSES, **narrow), images(2, 3, 32, 32)),
        "vgg19_bn": lambda: (models.vgg19(CLASSES, True, **narrow), images(4, 3, 32, 32)),
        "googlenet": lambda: (
            models.GoogLeNet(CLASSES, auxiliary=True, dropout=0.0, dropout_aux=0.0),
            images(2, 3, 96, 96)),
        "resnet18": lambda: (models.resnet18(CLASSES), x),
        "resnet50": lambda: (models.resnet50(CLASSES), x),
        "densenet121": lambda: (models.densenet121(CLASSES), x),
        "mobilenet_v2": lambda: (models.mobilenet_v2(CLASSES, 0.25, 0.0), x),
        "mobilenet_v3_large": lambda: (models.mobilenet_v3_large(CLASSES, 0.25, 0.0), x),
        "mobilenet_v3_small": lambda: (models.mobilenet_v3_small(CLASSES, 0.25, 0.0), x),
        "efficientnet_b0": lambda: (models.efficientnet(0.25, 1.0, CLASSES, 0.0, 0.0), x),
        "convnext_tiny": lambda: (models.convnext((1, 1, 2, 1), (8, 16, 24, 32), CLASSES), x),
        "unet": lambda: (models.unet(width=4), images(2, 3, 32, 32)),
        "lstm_lm": lambda: (models.lstm_lm(WORDS, 8, HIDDEN, dropout=0.0), tokens),
    }  # fmt: skip
    with nn.init.skipped():
        net, given = makers[name]()
    state = {n: drawn(n, s.shape) for n, s in torch_slots(net).items()}
    nn.load_torch(net, state)
    return net, given


def variable(given):
    kind = given.dtype.name if given.dtype.kind == "i" else str(symdnn.config.floatX)
    return T.TensorType(kind, (None,) * given.ndim)("x")


QUICK = [
    "alexnet", "alexnet_grouped", "vgg16", "resnet18", "unet", "lstm_lm", "mobilenet_v3_small",
    "convnext_tiny",
]  # fmt: skip
SLOW = [
    "vgg19_bn", "googlenet", "resnet50", "densenet121", "mobilenet_v2", "mobilenet_v3_large",
    "efficientnet_b0",
]  # fmt: skip
each = pytest.mark.parametrize(
    "name", sampled(QUICK, every=2) + [pytest.param(n, marks=pytest.mark.slow) for n in SLOW]
)


#: Values grow from layer to layer: PyTorch's own float32 is off by 1e-4 of the largest score.
IN_FLOAT64 = ("mobilenet_v3_large",)


@each
def test_evaluation_is_pytorchs(name):
    with symdnn.config.change_flags(floatX="float64" if name in IN_FLOAT64 else "float32"):
        net, given = small(name)
        x = variable(given)
        y = symdnn.function([x], net.evaluate()(x))(given.astype(x.dtype))
    wanted = STORED[f"{name}/y"]
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


#: GoogLeNet pools what overlapping windows of another pooling gave: true ties. PyTorch gives the
#: gradient to one of them, symdnn to each; parameters before those are not compared.
BEFORE_TIES = {"googlenet": ("conv", "inception3")}


@each
def test_gradients_in_training_are_pytorchs(name):
    """In float64: each parameter's gradient by its length and its product with a fixed vector."""
    with symdnn.config.change_flags(floatX="float64"):
        net, given = small(name)
        x = variable(given)
        y = net.train()(x)
        loss = loss_of(y if isinstance(y, list) else [y], [x], given)
        trained, slots = net.parameters(), torch_slots(net)
        gradients = T.grad(loss, trained)
        step = symdnn.function([x], [loss, *gradients], updates=nn.state_updates(loss))
        value, *gradients = step(given.astype(x.dtype))
    assert float(value) == pytest.approx(float(STORED[f"{name}/loss"]), rel=1e-7)
    of = dict(zip(trained, gradients))
    names = sorted(n for n, s in slots.items() if s.variable in of)
    for n, (length, product) in zip(names, STORED[f"{name}/gradients"], strict=True):
        if n.startswith(BEFORE_TIES.get(name, ("no parameter",))):
            continue
        g = slots[n].part(np.asarray(of[slots[n].variable]))
        assert abs(np.linalg.norm(g) - length) < 1e-7 * (length + 1), n
        assert abs((g * direction(n, g.shape)).sum() - product) < 1e-6 * (length + 1), n
    sums = [v.get_value().sum() for _, v in sorted(net.named_buffers().items())]
    np.testing.assert_allclose(sums, STORED[f"{name}/statistics"], rtol=1e-7)


def loss_of(heads, inputs, given):
    """The sum of the outputs times fixed numbers, that of all heads."""
    values = symdnn.function(inputs, heads)(given.astype(inputs[0].dtype))
    return sum(
        (y * direction(f"y{i}", value.shape)).sum()
        for i, (y, value) in enumerate(zip(heads, values, strict=True))
    )


def steps(net, x, loss, given, rate=1e-3, count=10):
    """Losses of a few steps of Adam."""
    train = symdnn.function([x], loss, updates=nn.optim.adam(loss, net, rate))
    return [float(train(given)) for _ in range(count)]


TRAINED = {
    "lenet": (lambda: models.lenet(4), (8, 1, 28, 28)),
    "lenet5": (lambda: models.lenet5(4), (8, 1, 32, 32)),
    "alexnet": (lambda: models.alexnet(4, 0.0, 64), (4, 3, 67, 67)),
    "vgg16": (lambda: models.vgg16(4, True, 0.0, 64), (4, 3, 32, 32)),
    "resnet18": (lambda: models.resnet18(4), (4, 3, 32, 32)),
    "densenet": (lambda: models.densenet((2, 2), 4, 8, 16), (4, 3, 32, 32)),
    "convnext": (
        lambda: models.convnext((1, 1), (8, 16), 4, 0.1, layer_scale=0.1), (4, 3, 32, 32)),
}  # fmt: skip
SLOW_TRAINED = {
    "alexnet_grouped": (lambda: models.alexnet_grouped(4, 0.0), (2, 3, 227, 227)),
    "vgg19": (lambda: models.vgg19(4, True, 0.0, 64), (4, 3, 32, 32)),
    "resnet34": (lambda: models.resnet34(4), (4, 3, 64, 64)),
    "resnet50": (lambda: models.resnet50(4), (4, 3, 64, 64)),
    "resnet101": (lambda: models.resnet101(4), (4, 3, 64, 64)),
    "resnet152": (lambda: models.resnet152(4), (4, 3, 64, 64)),
    "densenet121": (lambda: models.densenet121(4), (4, 3, 64, 64)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(4, 0.25, 0.0), (4, 3, 64, 64)),
    "mobilenet_v3_small": (lambda: models.mobilenet_v3_small(4, 0.25, 0.0), (4, 3, 64, 64)),
    "efficientnet": (lambda: models.efficientnet(0.25, 1, 4, 0.0, 0.0), (4, 3, 64, 64)),
}


@pytest.mark.parametrize(
    "name",
    [
        *sampled(list(TRAINED), every=3),
        *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW_TRAINED),
    ],
)
def test_a_few_steps_learn_a_batch(name):
    nn.init.seed(3)
    make, shape = (TRAINED | SLOW_TRAINED)[name]
    net, x, labels = make(), T.tensor4("x"), np.arange(shape[0]) % 4
    loss = nn.CrossEntropyCriterion()(net(x), labels)
    # Without normalisation a rate of 1e-3 is more than so deep a net bears.
    rate = 3e-4 if "alexnet" in name else 1e-3
    count = 4 if name.startswith(("resnet", "vgg")) else 10  # they normalise
    losses = steps(net, x, loss, images(*shape), rate, count)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.slow
def test_googlenet_learns_with_its_heads():
    nn.init.seed(3)
    net, x = models.googlenet(4, auxiliary=True), T.tensor4("x")
    cross, labels = nn.CrossEntropyCriterion(), np.arange(4)
    heads = net(x)
    assert len(heads) == 3
    loss = sum(weight * cross(y, labels) for weight, y in zip((1, 0.3, 0.3), heads))
    losses = steps(net, x, loss, images(4, 3, 64, 64))
    assert losses[-1] < 0.9 * losses[0]
    assert net.evaluate()(x).ndim == 2


def test_googlenet_takes_images_normalised_for_the_others():
    given, x = np.random.default_rng(0).uniform(size=(1, 3, 33, 33)).astype("float32"), T.tensor4()
    mean, deviation = (
        np.array(v, "float32").reshape(3, 1, 1)
        for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    outputs = []
    for transform, value in ((True, (given - mean) / deviation), (False, (given - 0.5) / 0.5)):
        nn.init.seed(1)
        net = models.googlenet(4, transform_input=transform).evaluate()
        outputs.append(symdnn.function([x], net(x))(value))
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_unet_learns_to_mark_pixels():
    nn.init.seed(3)
    net, x = models.unet(1, 2, width=4), T.tensor4("x")
    given = images(2, 1, 32, 32)
    loss = nn.SpatialCrossEntropyCriterion()(net(x), (given[:, 0] > 0.3).astype("int32"))
    assert steps(net, x, loss, given, 0.01, 40)[-1] < 0.3


def test_unet_keeps_odd_multiples_and_its_form_without_normalisation():
    with nn.init.skipped():
        assert count(models.unet(1, 1, batch_norm=False)) == 31_030_593
    x = T.tensor4("x")
    net = models.unet(1, 3, width=2, batch_norm=False)
    assert symdnn.function([x], net(x))(images(1, 1, 48, 80)).shape == (1, 3, 48, 80)


def test_the_language_model_goes_on_where_a_batch_ended():
    """Learning a cycle of words; two halves with the states between them give the whole."""
    nn.init.seed(3)
    net, x = models.lstm_lm(6, 16, 16, dropout=0.0), T.imatrix("x")
    text = (np.arange(21)[:, None] + np.arange(3)).astype("int32") % 6
    loss = nn.CrossEntropyCriterion()(net(x[:-1]).reshape((-1, 6)), x[1:].flatten())
    assert steps(net, x, loss, text, 0.02, 40)[-1] < 0.2
    h, c = T.tensor3("h"), T.tensor3("c")
    run = symdnn.function([x, h, c], net.evaluate().states(x, h, c))
    zero = np.zeros((2, 3, 16), "float32")
    whole, *last = run(text, zero, zero)
    first, *states = run(text[:8], zero, zero)
    second, *end = run(text[8:], *states)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(end, last, rtol=1e-4, atol=1e-5)


SINGLE = {
    "lenet": (models.lenet, (1, 28, 28)),
    "lenet5": (models.lenet5, (1, 32, 32)),
    "alexnet": (lambda: models.alexnet(10, hidden=8), (3, 67, 67)),
    "vgg16": (lambda: models.vgg16(10, hidden=8), (3, 32, 32)),
    "googlenet": (lambda: models.googlenet(10, transform_input=True), (3, 64, 64)),
    "resnet18": (lambda: models.resnet18(10), (3, 64, 64)),
    "densenet": (lambda: models.densenet((2, 2), 10, 8, 16), (3, 32, 32)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(10, 0.25), (3, 32, 32)),
    "mobilenet_v3_small": (lambda: models.mobilenet_v3_small(10, 0.25), (3, 32, 32)),
    "convnext": (lambda: models.convnext((1, 1), (8, 16), 10), (3, 32, 32)),
    "unet": (lambda: models.unet(width=2), (3, 16, 32)),
}


@pytest.mark.parametrize("name", sampled(list(SINGLE), every=3))
def test_one_image_alone_gives_what_it_gives_in_a_batch(name):
    make, shape = SINGLE[name]
    nn.init.seed(2)
    net, image = make().evaluate(), images(*shape)
    one, batch = T.tensor3("one"), T.tensor4("batch")
    alone, among = symdnn.function([one, batch], [net(one), net(batch)])(image, image[None])
    assert alone.shape == among.shape[1:]
    np.testing.assert_allclose(alone, among[0], rtol=1e-4, atol=1e-5)


def test_tied_weights_are_one_variable():
    net = models.lstm_lm(20, 8, 8, tied=True)
    assert net.decoder.weight is net.encoder.weight
    assert "decoder.weight" not in net.named_parameters()
    with pytest.raises(InputError, match="tied weights want embedding = hidden, got 8 and 9"):
        models.lstm_lm(20, 8, 9, tied=True)


def test_skipped_initial_values_are_zeros_and_only_inside():
    with nn.init.skipped():
        inside = models.lenet()
    assert not any(p.get_value().any() for p in inside.parameters())
    assert all(p.get_value().any() for p in models.lenet().parameters())
