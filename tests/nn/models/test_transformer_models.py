"""Transformers: published numbers of parameters, other libraries' values, decoding."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.nn import models
from symdnn.nn.formats.torch import torch_slots
from symdnn.ops.random.random_stream import RandomStream
from tests.nn.drawn_weights import direction, drawn, images
from tests.seeded import new_rng

STORED = np.load(Path(__file__).parent / "transformer_models.npz")
WORDS, CONTEXT, WIDTH, LAYERS = 40, 16, 24, 2

#: What the papers and the pages of the checkpoints say.
COUNTS = {
    "gpt2": 124_439_808, "gpt2_medium": 354_823_168, "bert_base": 109_482_240,
    "bert_large": 335_141_888, "vit_b_16": 86_567_656, "tinyllama": 1_100_048_384,
}  # fmt: skip
LARGE = {"gpt2_large": 774_030_080, "gpt2_xl": 1_557_611_200, "llama2_7b": 6_738_415_616}
MAKERS = {
    "gpt2": lambda: models.gpt2(WORDS, CONTEXT, WIDTH, LAYERS, 3, 0.0),
    "llama": lambda: models.llama(WORDS, WIDTH, LAYERS, 6, 2, 40),
    "bert_base": lambda: models.bert_base(WORDS, CONTEXT, WIDTH, LAYERS, 3, 32, 0.0),
    "vit_b_16": lambda: models.vit_b_16(10, 16, 8, WIDTH, LAYERS, 3, 32),
}


def count(net):
    return sum(int(np.prod(p.type.shape)) for p in net.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_the_published_number_of_parameters(name):
    with nn.init.skipped():
        assert count(getattr(models, name)()) == COUNTS[name]


@pytest.mark.parametrize("name", LARGE)
def test_large_models_have_the_published_numbers(name, monkeypatch):
    """Of values that are broadcast, so that gigabytes are not made."""
    asked = {}

    def noted(module, made, shape, *args, **kwargs):
        asked[id(module), made] = int(np.prod(shape))
        small = symdnn.shared(np.zeros((1,) * len(shape), "float32"))
        setattr(module, made, small)
        return small

    monkeypatch.setattr(nn.Module, "parameter", noted)
    net = getattr(models, name)()
    kept = {id(p) for p in net.parameters()}
    total = sum(
        asked[id(m), n] for _, m in net.named_modules() for n, v in vars(m).items()
        if (id(m), n) in asked and id(v) in kept
    )  # fmt: skip
    if name.startswith("gpt2"):  # lm_head made a weight, and uses the embedding's
        head = net.lm_head
        total -= asked[id(head), "weight"]
    assert total == LARGE[name]


def small(name):
    """A network with the values that the other library's had, and its inputs."""
    with nn.init.skipped():
        net = MAKERS[name]()
    values = {n: drawn(n, s.shape) for n, s in torch_slots(net).items()}
    if name == "gpt2":  # one parameter: the library sets its last name last
        values["transformer.wte.weight"] = values["lm_head.weight"]
    nn.load_torch(net, values)
    tokens = np.random.RandomState(1).randint(0, WORDS, (2, 7))
    if name == "vit_b_16":
        return net, [images(2, 3, 16, 16)]
    if name == "bert_base":
        return net, [tokens, np.array([[1] * 5 + [0] * 2, [1] * 7]), (tokens > 20).astype("int64")]
    return net, [tokens]


def variable(given, dtype="float64"):
    kind = given.dtype.name if given.dtype.kind == "i" else dtype
    return T.TensorType(kind, (None,) * given.ndim)("x")


def results(net, inputs):
    y = net(*inputs)
    return y if isinstance(y, list) else [y]


@pytest.mark.parametrize("name", MAKERS)
def test_values_and_gradients_are_the_other_librarys(name):
    net, given = small(name)
    inputs = [variable(v, "float32") for v in given]
    outputs = results(net.evaluate(), inputs)
    loss = sum((y * direction(f"y{i}", STORED[f"{name}/y{i}"].shape)).sum()
               for i, y in enumerate(outputs))  # fmt: skip
    named = dict(sorted(net.named_parameters().items()))
    f = symdnn.function(inputs, [*outputs, loss, *symdnn.grad(loss, list(named.values()))])
    found = f(*given)
    for i in range(len(outputs)):
        wanted = STORED[f"{name}/y{i}"]
        np.testing.assert_allclose(found[i], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(found[len(outputs)], STORED[f"{name}/loss"], rtol=1e-4)
    gradients = dict(zip(named, found[len(outputs) + 1 :], strict=True))
    wanted = STORED[f"{name}/gradients"]
    largest = wanted[:, 0].max()
    for (length, along), (key, g) in zip(wanted, gradients.items(), strict=True):
        np.testing.assert_allclose(np.linalg.norm(g), length, rtol=1e-4, atol=1e-5 * largest)
        np.testing.assert_allclose(
            (g * direction(key, g.shape)).sum(),
            along,
            rtol=1e-4,
            atol=2e-5 * largest * np.sqrt(g.size),
        )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoding_with_a_cache_is_the_whole_text(name):
    net, (tokens,) = small(name)
    net.evaluate()
    whole = T.lmatrix("whole")
    wanted = symdnn.function([whole], net(whole))(tokens)
    cache, some = nn.KeyValueCache(2, CONTEXT), T.tensor("int64", (2, 3), name="some")
    first = net(some, cache=cache)
    begin = symdnn.function([some], first, updates=cache.updates(first))
    one = T.tensor("int64", (2, 1), name="one")
    scores = net(one, cache=cache)
    step = symdnn.function([one], scores, updates=cache.updates(scores))
    found = [begin(tokens[:, :3]), *(step(tokens[:, i : i + 1]) for i in range(3, 7))]
    np.testing.assert_allclose(np.concatenate(found, 1), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_text_is_learnt(name):
    nn.init.seed(3)
    net = MAKERS[name]()
    text = new_rng().integers(0, WORDS, (1, 9))
    x = T.lmatrix("x")
    scores = net(x[:, :-1])
    loss = nn.CrossEntropyCriterion()(scores.reshape((-1, WORDS)), x[:, 1:].flatten())
    f = symdnn.function([x], loss, updates=nn.optim.adam(loss, net, lr=0.01))
    losses = [float(f(text)) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]


def test_gpt2s_embedding_and_head_are_one_parameter():
    net = MAKERS["gpt2"]()
    assert net.lm_head.weight is net.transformer.wte.weight
    assert "lm_head.weight" not in net.named_parameters()


# -- texts -----------------------------------------------------------------------------------------


def drawn_tokens(scores, count=4000, **settings):
    x = T.fmatrix("x")
    f = symdnn.function([x], models.sample(x, RandomStream(5), **settings))
    return f(np.repeat(np.array([scores], "float32"), count, 0))


def frequencies(tokens, words):
    return np.bincount(tokens, minlength=words) / len(tokens)


def softmax(x):
    e = np.exp(np.asarray(x) - np.max(x))
    return e / e.sum()


SCORES = [1.0, 3.0, 2.5, -1.0, 0.0]


def test_samples_have_the_probabilities_of_their_scores():
    for temperature in (1.0, 0.5):
        found = frequencies(drawn_tokens(SCORES, temperature=temperature), 5)
        np.testing.assert_allclose(found, softmax(np.divide(SCORES, temperature)), atol=0.035)


def test_the_largest_scores_alone_are_drawn():
    assert set(drawn_tokens(SCORES, temperature=0)) == {1}
    found = frequencies(drawn_tokens(SCORES, top_k=2), 5)
    np.testing.assert_allclose(found, [0, *softmax([3.0, 2.5]), 0, 0], atol=0.035)
    p = np.sort(softmax(SCORES))[::-1]
    for top_p, kept in ((p[0] - 0.01, {1}), (p[0] + 0.01, {1, 2}), (1.0, {0, 1, 2, 3, 4})):
        assert set(drawn_tokens(SCORES, top_p=float(top_p))) == kept


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_generated_text_is_that_of_whole_calls(name):
    net, (tokens,) = small(name)
    generate = models.Generator(net, 2, CONTEXT, temperature=0)
    found = generate(tokens[:, :4], 6)
    x = T.lmatrix("x")
    best = symdnn.function([x], T.argmax(net(x)[:, -1], axis=-1))
    text = tokens[:, :4]
    for _ in range(6):
        text = np.concatenate([text, best(text)[:, None]], 1)
    np.testing.assert_array_equal(found, text)
    np.testing.assert_array_equal(generate(tokens[:, :4], 6), text)  # it begins anew


def test_what_cannot_be_generated_is_named():
    net, (tokens,) = small("gpt2")
    generate = models.Generator(net, 2, CONTEXT)
    with pytest.raises(symdnn.errors.InputError, match="at most 16 have room"):
        generate(tokens, 20)
    with pytest.raises(symdnn.errors.InputError, match=r"wanted tokens \(2, time\)"):
        generate(tokens[0], 2)
    with pytest.raises(symdnn.errors.InputError, match="top_k=0"):
        models.Generator(net, 2, CONTEXT, top_k=0)
