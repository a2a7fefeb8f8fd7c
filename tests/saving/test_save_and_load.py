"""Functions in files: equal results, bit for bit, updates, random states, and any device."""

from __future__ import annotations

import copy
import pickle
import zipfile

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In, Mode, Out, nn
from symdnn.errors import FileFormatError, InputError
from symdnn.io.safetensors import read_from
from symdnn.tensor.random import RandomStream
from tests.seeded import new_rng


def through(f, folder, **options):
    symdnn.save(f, folder / "f")
    return symdnn.load(folder / "f", **options)


def same(a, b):
    for x, y in zip(a if isinstance(a, list) else [a], b if isinstance(b, list) else [b]):
        np.testing.assert_array_equal(x, y)


def agree(f, g, *calls):
    """Two functions give equal bits in calls one after the other, and keep equal values."""
    for args in calls:
        same(f(*args), g(*args))
    for a, b in zip(f.get_shared(), g.get_shared(), strict=True):
        assert (a.name, a.type) == (b.name, b.type)
        np.testing.assert_array_equal(a.get_value(), b.get_value())


def trained(net, shape, classes, lr=0.05):
    """A step of Adam on a classifier."""
    x, t = T.tensor("float32", ("batch", *shape), name="x"), T.ivector("t")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(net(x)), t).mean()
    rng = new_rng()
    draw = lambda: (  # noqa: E731
        rng.standard_normal((6, *shape)).astype("float32"),
        rng.integers(0, classes, 6).astype("int32"),
    )
    return symdnn.function([x, t], loss, updates=nn.optim.adam(loss, net, lr=lr), name="step"), draw


def test_a_training_step_goes_on(tmp_path):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 4 * 4, 3),
    )  # fmt: skip
    f, draw = trained(net, (2, 8, 8), 3)
    f(*draw())
    g = through(f, tmp_path)
    agree(f, g, draw(), draw(), draw())
    names = [v.name for v in g.get_shared()]
    assert "0.weight" in names
    with zipfile.ZipFile(tmp_path / "f") as archive, archive.open("values.safetensors") as values:
        arrays, _ = read_from(values, archive.getinfo("values.safetensors").file_size, tmp_path)
    assert arrays["0.weight"].shape == (4, 2, 3, 3)


def test_recurrent_networks(tmp_path):
    x = T.ftensor3("x")
    for net in (nn.LSTM(3, 4, 2), nn.GRU(3, 4, 1)):
        out = net(x)
        f = symdnn.function([x], out[0] if isinstance(out, list | tuple) else out)
        agree(f, through(f, tmp_path), [new_rng().standard_normal((5, 2, 3)).astype("float32")])


def test_a_loop_with_shared_variables(tmp_path):
    x, n = T.fvector("x"), T.iscalar("n")
    w = symdnn.shared(np.float32([[0.5, 0.25], [0.125, 1]]), name="w")
    states, updates = symdnn.scan(lambda h: T.tanh(T.dot(w, h)) + 0.1, outputs_info=x, n_steps=n)
    f = symdnn.function([x, n], [states, T.grad(states.sum(), w)], updates=updates)
    agree(f, through(f, tmp_path), ([1, 2], 3), ([0, 1], 7))


def test_random_states_and_dropout_go_on(tmp_path):
    random, x = RandomStream(seed=7), T.fmatrix("x")
    kept = T.nnet.relu(x) * random.binomial((4, 5), p=0.5) + random.normal((4, 5))
    f = symdnn.function([x], kept)
    ones = np.ones((4, 5), "float32")
    f(ones)
    agree(f, through(f, tmp_path), [ones], [ones])
    drop = nn.Dropout(0.5)
    g = symdnn.function([x], drop(x))
    agree(g, through(g, tmp_path), [ones], [ones])


def test_attention_with_a_mask(tmp_path):
    q, k, v = (T.tensor4(n) for n in "qkv")
    scores = T.batched_dot(q.reshape((-1, 5, 4)), k.reshape((-1, 5, 4)).dimshuffle(0, 2, 1)) / 2.0
    mask = T.tri(5, 5) > 0
    weights = T.nnet.softmax(T.switch(mask, scores, -np.inf), axis=-1)
    f = symdnn.function([q, k, v], T.batched_dot(weights, v.reshape((-1, 5, 4))))
    draw = [new_rng().standard_normal((2, 3, 5, 4)).astype("float32") for _ in range(3)]
    agree(f, through(f, tmp_path), draw)


def test_inputs_and_outputs_are_declared_alike(tmp_path):
    x, lr, count = T.fvector("x"), T.fscalar("lr"), T.iscalar("count")
    kept = symdnn.shared(np.float32(2), name="kept")
    s = T.fscalar("s")
    inputs = [
        In(x, name="data", strict=True), In(lr, value=0.5), In(s, value=kept),
        In(count, value=3, update=count + 1),
    ]  # fmt: skip
    f = symdnn.function(inputs, {"a": Out(x * lr * s, borrow=True), "b": count})
    f(np.float32([1]))
    g = through(f, tmp_path)
    for _ in range(2):
        a, b = f(data=np.float32([1, 2])), g(data=np.float32([1, 2]))
        assert list(a) == list(b) == ["a", "b"]
        same(list(a.values()), list(b.values()))
    assert g["lr"] == 0.5
    assert g["count"] == f["count"] == 6
    assert [v.name for v in g.get_shared()] == [v.name for v in f.get_shared()]
    with pytest.raises(InputError, match="strict|float32"):
        g(data=[1, 2])


def test_names_of_sizes_are_kept(tmp_path):
    x = T.tensor("float32", ("batch", 3), name="x")
    y = T.tensor("float32", ("batch", 2), name="y")
    g = through(symdnn.function([x, y], [x + 1, y.sum()]), tmp_path)
    assert str(g.declared[0].variable.type) == "float32(batch, 3)"
    with pytest.raises(symdnn.errors.DimensionMismatch, match="batch"):
        g(np.zeros((2, 3), "float32"), np.zeros((4, 2), "float32"))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "complex128"])
def test_dtypes(tmp_path, dtype):
    w = symdnn.shared(np.arange(3).astype(symdnn.graph.type.numpy_dtype(dtype)), name="w")
    c = T.constant(np.ones(3).astype(symdnn.graph.type.numpy_dtype(dtype)))
    f = symdnn.function([], [w, T.eq(w, c)])
    agree(f, through(f, tmp_path), [])


def test_givens_are_applied_and_names_may_repeat(tmp_path):
    x, i = T.fmatrix("x"), T.lscalar("i")
    data = symdnn.shared(new_rng().standard_normal((8, 3)).astype("float32"), name="same")
    other = symdnn.shared(np.float32([1, 2, 3]), name="same")
    f = symdnn.function([i], (x * other).sum(axis=1), givens={x: data[i * 2 : i * 2 + 2]})
    agree(f, through(f, tmp_path), [0], [3])


def test_a_storage_of_two_variables_stays_one(tmp_path):
    a = symdnn.shared(np.float32([1, 2]), name="a")
    b = a.clone("b")
    g = through(symdnn.function([], [a + 0, b * 2], updates=[(a, a + 1)]), tmp_path)
    g()
    same(g(), [np.float32([2, 3]), np.float32([4, 6])])


def test_hints_and_effects_stay(tmp_path, capsys):
    x = T.fvector("x")
    y = symdnn.printing.Print("second")(x + 1) * symdnn.printing.Print("first")(x)
    g = through(symdnn.function([x], y), tmp_path)
    symdnn.function([x], y)([1])
    expected = capsys.readouterr().out
    g([1])
    assert capsys.readouterr().out == expected
    x = T.tensor4("x")
    w = symdnn.shared(np.ones((1, 1, 2, 2), "float32"))
    f = symdnn.function([x], T.nnet.conv2d(x, w, hints=symdnn.Hints(name="stem")))
    g = through(f, tmp_path)
    assert "stem" in [n.hints.name for n in g.fgraph.nodes]


def test_copies_and_pickles_can_be_saved(tmp_path):
    x = T.fvector("x")
    w, v = (symdnn.shared(np.float32([1, 2]), name=n) for n in "wv")
    v.set_value(np.float32([5, 7]))
    f = symdnn.function([x], x * w, updates=[(w, w + 1)])
    for g in (f.copy(), f.copy(swap={w: v}), f.copy(delete_updates=True), copy.deepcopy(f),
              pickle.loads(pickle.dumps(f))):  # fmt: skip
        symdnn.save(g, tmp_path / "g")
        agree(g, symdnn.load(tmp_path / "g"), [[1, 1]], [[1, 1]])


def test_a_loaded_function_can_be_saved_again(tmp_path):
    x = T.fmatrix("x")
    w = symdnn.shared(np.ones((2, 2), "float32"), name="w")
    f = symdnn.function([x], T.dot(x, w), updates=[(w, w * 2)])
    g = through(f, tmp_path)
    first = (tmp_path / "f").read_bytes()
    symdnn.save(g, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == first


def test_saved_for_a_gpu_and_loaded_for_the_processor(tmp_path):
    x = T.tensor4("x")
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU())
    f = symdnn.function([x], net(x), mode=Mode(target="cuda:sm_90"))
    assert any(type(n.op).__name__.startswith("GpuDnn") for n in f.fgraph.nodes)
    g = through(f, tmp_path, target="cpu")
    assert g.stages.target.kind == "cpu"
    h = symdnn.function([x], net(x), mode=Mode(target="cpu"))
    agree(h, g, [new_rng().standard_normal((2, 2, 6, 6)).astype("float32")])
    again = through(g, tmp_path, target="cuda:sm_90")
    assert [type(n.op) for n in again.fgraph.toposort()] == [
        type(n.op) for n in f.fgraph.toposort()
    ]


def test_what_cannot_be_saved_says_so(tmp_path):
    x = T.fvector("x")
    with pytest.raises(InputError, match="strings as keys"):
        symdnn.save(symdnn.function([x], {1: x + 1}), tmp_path / "f")
    with pytest.raises(InputError, match="wanted a compiled function"):
        symdnn.save(x, tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        symdnn.load(tmp_path / "f")
    symdnn.io.save_parameters(tmp_path / "p.npz", {"w": np.ones(2)})
    with pytest.raises(FileFormatError, match="no saved function"):
        symdnn.load(tmp_path / "p.npz")
