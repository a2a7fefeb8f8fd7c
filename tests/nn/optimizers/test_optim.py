"""Optimisers: the numbers of PyTorch's, their state, groups, clipping, averages, accumulation."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.io
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import DisconnectedInput, InputError, TypeMismatch

STORED = np.load(Path(__file__).parents[1] / "torch_optim.npz")
DECAY = {"weight_decay": 0.1}
o = nn.optim

#: As in make_torch_optim.py, under our names.
CASES = {
    "sgd": (o.sgd, {"lr": 0.3}),
    "sgd_decay": (o.sgd, {"lr": 0.3, **DECAY}),
    "momentum": (o.momentum, {"lr": 0.2, **DECAY}),
    "nesterov": (o.nesterov, {"lr": 0.2, **DECAY}),
    "adagrad": (o.adagrad, {"lr": 0.2}),
    "adagrad_all": (
        o.adagrad, {"lr": 0.2, "lr_decay": 0.2, "initial_accumulator_value": 0.3, **DECAY},
    ),
    "rmsprop": (o.rmsprop, {"lr": 0.05}),
    "rmsprop_centered": (o.rmsprop, {"lr": 0.05, "centered": True, "alpha": 0.8}),
    "rmsprop_all": (
        o.rmsprop, {"lr": 0.05, "alpha": 0.9, "centered": True, "momentum": 0.7, **DECAY},
    ),
    "adadelta": (o.adadelta, {}),
    "adadelta_decay": (o.adadelta, {"lr": 2.0, "rho": 0.7, "eps": 1e-3, **DECAY}),
    "adam": (o.adam, {"lr": 0.1}),
    "adam_decay": (o.adam, {"lr": 0.1, "betas": (0.5, 0.8), "eps": 1e-3, **DECAY}),
    "adam_amsgrad": (o.adam, {"lr": 0.1, "betas": (0.6, 0.5), "amsgrad": True}),
    "adamw": (o.adamw, {"lr": 0.1, **DECAY}),
    "adamw_amsgrad": (o.adamw, {"lr": 0.1, "amsgrad": True, "betas": (0.6, 0.5), **DECAY}),
    "adamax": (o.adamax, {"lr": 0.1, **DECAY}),
    "nadam": (o.nadam, {"lr": 0.1}),
    "nadam_all": (o.nadam, {"lr": 0.1, "betas": (0.7, 0.8), "momentum_decay": 0.1, **DECAY}),
    "clip_norm": (o.momentum, {"lr": 0.3, "clip_norm": 0.2}),
    "clip_value": (o.momentum, {"lr": 0.3, "clip_value": 0.05}),
}  # fmt: skip


class Net(nn.Module):
    """tanh(x w' + b), its parameters as stored."""

    def __init__(self, dtype="float32"):
        self.parameter("w", (3, 4), lambda shape, rng: STORED["w"], dtype)
        self.parameter("b", (3,), lambda shape, rng: STORED["b"], dtype)

    def forward(self, x):
        return T.tanh(T.dot(x, self.w.T) + self.b)


def loss_of(net, dtype="float32"):
    x, y = T.matrix("x", dtype=dtype), T.matrix("y", dtype=dtype)
    return [x, y], ((net(x) - y) ** 2).mean()


def data(step, dtype="float32"):
    return STORED["x"][step].astype(dtype), STORED["y"][step].astype(dtype)


def values(net):
    return {name: p.get_value() for name, p in net.named_parameters().items()}


def assert_as_stored(name, dtype, make):
    net = Net(dtype)
    inputs, loss = loss_of(net, dtype)
    f = symdnn.function(inputs, loss, updates=make(loss, net))
    for step in range(5):
        f(*data(step, dtype))
        if step in (0, 4):
            for key, p in net.named_parameters().items():
                wanted = STORED[f"{name}/{dtype}/{key}{step + 1}"]
                close = 1e-5 if dtype == "float32" else 1e-11
                # PyTorch's clipping adds 1e-6 to the norm.
                close = max(close, 2e-5) if name == "clip_norm" else close
                assert p.get_value().dtype == dtype
                np.testing.assert_allclose(p.get_value(), wanted, rtol=close, atol=close / 10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(CASES))
def test_numbers_are_pytorchs(name, dtype):
    optimiser, options = CASES[name]
    assert_as_stored(name, dtype, lambda loss, net: optimiser(loss, net, **options))


@pytest.mark.parametrize("kind", ["number", "shared", "input dtype"])
def test_a_rate_may_be_symbolic(kind):
    rate = {"number": 0.1, "shared": symdnn.shared(np.float32(0.1)),
            "input dtype": symdnn.shared(np.float64(0.1))}[kind]  # fmt: skip
    assert_as_stored("adam", "float32", lambda loss, net: o.adam(loss, net, rate))


def test_groups_have_settings_of_their_own():
    def make(loss, net):
        groups = [([net.w], {"lr": 0.3}), ([net.b], {"weight_decay": 0.0})]
        return o.momentum(loss, groups, 0.1, weight_decay=0.1)

    assert_as_stored("groups", "float64", make)


@pytest.mark.parametrize("by", ["name", "variable", "function", "group"])
def test_factors_of_the_rate(by):
    def make(loss, net):
        given = {"name": {"w": 3}, "variable": {net.w: 3},
                 "function": lambda name, p: 3 if p.ndim == 2 else 1, "group": {}}[by]  # fmt: skip
        params = [([net.w], {"lr_scale": 3}), net.b] if by == "group" else net
        decays = o.matrices_only
        return o.momentum(
            loss, params, symdnn.shared(np.float64(0.1)), weight_decay=0.1, lr_scale=given,
            decays=decays,
        )  # fmt: skip

    assert_as_stored("groups", "float64", make)


def lamb_by_hand(w, grads, lr, betas, eps, decay):
    m = v = np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        r = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + decay * w
        lengths = np.linalg.norm(w), np.linalg.norm(r)
        w = w - lr * (lengths[0] / lengths[1] if all(lengths) else 1.0) * r
    return w


@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("zero", [False, True])
def test_lamb_is_the_papers(rng, dtype, close, zero):
    w0 = np.zeros((4, 3)) if zero else rng.normal(size=(4, 3))
    grads = rng.normal(size=(5, 4, 3)).astype(dtype).astype("float64")
    w, g = symdnn.shared(w0.astype(dtype), name="w"), T.matrix("g", dtype=dtype)
    f = symdnn.function([g], updates=o.lamb(None, [w], 0.01, weight_decay=0.1, grads=[g]))
    for each in grads:
        f(each.astype(dtype))
    start = w0.astype(dtype).astype("float64")
    wanted = lamb_by_hand(start, grads, 0.01, (0.9, 0.999), 1e-6, 0.1)
    np.testing.assert_allclose(w.get_value(), wanted, rtol=close, atol=close)


def trained(make, steps=3, net=None):
    net = net or Net()
    inputs, loss = loss_of(net)
    updates = make(loss, net)
    f = symdnn.function(inputs, loss, updates=updates)
    for step in range(steps):
        f(*data(step))
    return net, updates, f


@pytest.mark.parametrize("name", ["adam_amsgrad", "nadam_all", "rmsprop_all", "adagrad_all"])
def test_state_is_saved_and_training_goes_on_bit_for_bit(name):
    optimiser, options = CASES[name]

    def make(loss, net):
        return optimiser(loss, net, **options)

    net, updates, f = trained(make)
    saved, parameters = updates.state_dict(), net.state_dict()
    other, fresh, g = trained(make, steps=0)
    assert list(fresh.state) == list(updates.state)
    fresh.load_state_dict(saved)
    other.load_state_dict(parameters)
    for step in (3, 4):
        assert f(*data(step)) == g(*data(step))
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[key], value)


def test_state_goes_to_a_file(tmp_path):
    path = tmp_path / "state.safetensors"
    _, updates, _ = trained(lambda loss, net: o.adam(loss, net))
    symdnn.io.save_parameters(path, updates.state)
    _, other, _ = trained(lambda loss, net: o.adam(loss, net), steps=0)
    symdnn.io.load_parameters(path, into=other.state)
    for name, value in updates.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)


def test_names_of_the_state_follow_the_parameters():
    net = Net()
    _, loss = loss_of(net)
    assert sorted(o.adam(loss, net).state) == [
        "adam.b.mean", "adam.b.square", "adam.step", "adam.w.mean", "adam.w.square",
    ]  # fmt: skip
    assert sorted(o.momentum(loss, [net.w, net.b]).state) == [
        "sgd.0.w.velocity",
        "sgd.1.b.velocity",
    ]
    groups = [(net, {"lr": 0.1})]
    assert sorted(o.momentum(loss, groups, name="g").state) == ["g.0.b.velocity", "g.0.w.velocity"]
    assert o.sgd(loss, net).state == {}


def test_two_optimisers_in_one_function():
    net = Net()
    _, loss = loss_of(net)
    both = o.adam(loss, [net.w], name="a") + o.adam(loss, [net.b], name="b")
    assert {n.partition(".")[0] for n in both.state} == {"a", "b"}
    assert [v for v, _ in both if v in (net.w, net.b)] == [net.w, net.b]
    with pytest.raises(InputError, match=r"adam.step in both; give the optimisers different name="):
        o.adam(loss, [net.w]) + o.adam(loss, [net.b])


def test_wrong_state_changes_nothing():
    _, updates, _ = trained(lambda loss, net: o.momentum(loss, net))
    before = updates.state_dict()
    wrong = {"sgd.w.velocity": np.ones(3), "sgd.c": np.ones(3)}
    with pytest.raises(InputError, match=r"b.velocity is missing; sgd.c is unknown; .*\(3,\)"):
        updates.load_state_dict(wrong)
    for name, value in updates.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_statistics_are_updated_too():
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.buffer("calls", np.float32(0))

        def forward(self, x):
            y = super().forward(x)
            y.tag.state_updates = [(self.calls, self.calls + np.float32(1))]
            return y

    net, updates, _ = trained(lambda loss, net: o.sgd(loss, net), net=Counting())
    assert net.calls.get_value() == 3
    assert not updates.state


def test_accumulated_steps_are_those_of_one_large_batch():
    x, y = STORED["x"][:4].astype("float32"), STORED["y"][:4].astype("float32")
    nets = [Net(), Net()]
    functions, states = [], []
    for net, count in zip(nets, (1, 2)):
        inputs, loss = loss_of(net)
        updates = o.adam(loss, net, 0.1, accumulate=count, clip_norm=0.3)
        functions.append(symdnn.function(inputs, loss, updates=updates))
        states.append(updates.state)
    for i in (0, 2):
        functions[0](np.concatenate(x[i : i + 2]), np.concatenate(y[i : i + 2]))
        before = values(nets[1])
        functions[1](x[i], y[i])
        for key, value in values(nets[1]).items():
            np.testing.assert_array_equal(value, before[key])
        assert states[1]["adam.micro_step"].get_value() == 1
        functions[1](x[i + 1], y[i + 1])
        for key, value in values(nets[1]).items():
            np.testing.assert_allclose(value, values(nets[0])[key], rtol=1e-5, atol=1e-6)
    assert states[1]["adam.step"].get_value() == 2
    assert not states[1]["adam.w.sum"].get_value().any()


def test_an_infinite_gradient_leaves_the_step_out():
    net, g = Net(), T.matrix("g")
    scale = symdnn.LossScale(initial=8.0)
    loss = (net.w * g).sum() + net.b.sum()
    updates = o.adam(loss, net, loss_scale=scale)
    f = symdnn.function([g], loss, updates=updates)
    before = net.state_dict()
    f(np.full((3, 4), np.inf, "float32"))
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert updates.state["adam.step"].get_value() == 0
    assert updates.state["loss_scale"].get_value() == 4
    f(np.ones((3, 4), "float32"))
    assert updates.state["adam.step"].get_value() == 1
    assert (net.w.get_value() != before["w"]).all()


def test_averages_of_the_parameters():
    net = Net()
    inputs, loss = loss_of(net)
    average = o.ema(o.sgd(loss, net, 0.3), net, 0.8)
    f = symdnn.function(inputs, loss, updates=average.updates)
    wanted = values(net)
    for step in range(3):
        f(*data(step))
        wanted = {k: 0.8 * wanted[k] + 0.2 * v for k, v in values(net).items()}
    for key, value in average.state_dict().items():
        np.testing.assert_allclose(value, wanted[key], rtol=1e-6)
    own = net.state_dict()
    with average.swapped():
        for key, value in values(net).items():
            np.testing.assert_allclose(value, wanted[key], rtol=1e-6)
    for key, value in values(net).items():
        np.testing.assert_array_equal(value, own[key])
    assert sorted(average.updates.state) == ["ema.b", "ema.w"]


def test_averages_warm_up():
    net = Net()
    inputs, loss = loss_of(net)
    average = o.ema(o.sgd(loss, net, 0.3), net, 0.9, warm_up=True)
    f = symdnn.function(inputs, loss, updates=average.updates)
    wanted = values(net)
    for step in range(3):
        f(*data(step))
        rate = min(0.9, (1 + step) / (10 + step))
        wanted = {k: rate * wanted[k] + (1 - rate) * v for k, v in values(net).items()}
    for key, value in average.state_dict().items():
        np.testing.assert_allclose(value, wanted[key], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_state_of_short_parameters_is_long(dtype):
    w = symdnn.shared(np.ones((2, 3), T.constant(np.zeros(1), dtype=dtype).type.numpy), name="w")
    g = np.full((2, 3), 0.5, "float32")
    updates = o.adam(None, [w], 0.125, grads=[T.constant(g).astype(dtype)], clip_norm=1.0)
    symdnn.function([], updates=updates)()
    assert w.get_value().dtype.name == dtype
    np.testing.assert_array_equal(w.get_value().astype("float32"), np.float32(0.875))
    assert updates.state["adam.0.w.mean"].get_value().dtype == "float32"


def test_clipping(rng):
    a, b = (rng.normal(size=s).astype("float32") for s in ((3, 4), (5,)))
    norm = np.sqrt((a**2).sum() + (b**2).sum())
    for limit in (norm / 3, norm * 3):
        found = symdnn.function([], nn.clip_by_norm([T.constant(a), T.constant(b)], limit))()
        factor = min(1, limit / norm)
        for g, wanted in zip(found, (a, b)):
            np.testing.assert_allclose(g, wanted * factor, rtol=1e-5)
    found = symdnn.function([], nn.clip_by_value([T.constant(a)], 0.5))()[0]
    np.testing.assert_array_equal(found, a.clip(-0.5, 0.5))
    zero = symdnn.function([], nn.clip_by_norm([T.zeros((3,))], 1.0))()[0]
    np.testing.assert_array_equal(zero, np.zeros(3))


def test_bad_arguments():
    net = Net()
    _, loss = loss_of(net)
    with pytest.raises(InputError, match=r"adam: no option betta; there are lr, betas, .* grads"):
        o.adam(loss, net, betta=1)
    with pytest.raises(InputError, match=r"a group has no option momentum; there are lr_scale, lr"):
        o.adam(loss, [([net.w], {"momentum": 0.1})])
    with pytest.raises(InputError, match=r"adam: 1.w is the parameter 0.w again"):
        o.adam(loss, [net.w, net.w])
    with pytest.raises(InputError, match=r"lr_scale has v; the parameters are w, b"):
        o.adam(loss, net, lr_scale={"v": 2.0})
    with pytest.raises(InputError, match=r"there is no parameter"):
        o.adam(loss, [])
    with pytest.raises(InputError, match=r"wanted a loss, or the gradients"):
        o.adam(None, net)
    with pytest.raises(InputError, match=r"1 gradients for 2 parameters"):
        o.adam(None, net, grads=[net.w])
    with pytest.raises(TypeMismatch, match=r"adam: wanted a module, shared variables"):
        o.adam(loss, [T.matrix("w")])
    with pytest.raises(TypeMismatch, match=r"adam: lr: wanted a float"):
        o.adam(loss, net, T.vector("lr"))
    with pytest.raises(ValueError, match=r"betas=\(0.9, 1.0\); wanted from 0 to less than 1"):
        o.adam(loss, net, betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"sgd: lr=-1; wanted 0 or more"):
        o.sgd(loss, net, -1)
    with pytest.raises(ValueError, match="accumulate=0"):
        o.sgd(loss, net, accumulate=0)
    with pytest.raises(ValueError, match="limit=0"):
        nn.clip_by_norm([net.w], 0)
    with pytest.raises(TypeMismatch, match="clip_by_value: wanted gradients that are float"):
        nn.clip_by_value([T.constant(np.arange(3))], 1.0)
    with pytest.raises(InputError, match="the updates change no b"):
        o.ema(o.sgd(loss, [net.w]), net)
    with pytest.raises(DisconnectedInput):
        o.sgd(loss, [symdnn.shared(np.float32(1), name="other")])


def test_the_sum_of_adagrad_begins_where_either_name_says(rng):
    start, found = rng.normal(size=3), []
    for options in ({"initial": 0.5}, {"initial_accumulator_value": 0.5}):
        for grouped in (False, True):
            p = symdnn.shared(start, name="p")
            params, more = ([{"params": [p], **options}], {}) if grouped else ([p], options)
            symdnn.function([], [], updates=o.adagrad((p**2).sum(), params, 0.1, **more))()
            found.append(p.get_value())
    expected = start - 0.1 * 2 * start / (np.sqrt(0.5 + 4 * start**2) + 1e-10)
    np.testing.assert_allclose(found, [expected] * 4, rtol=1e-12)
    with pytest.raises(InputError, match="wanted one of them"):
        o.adagrad((p**2).sum(), [p], initial=0.5, initial_accumulator_value=0.5)


@pytest.mark.parametrize("optimiser", [nn.optim.sgd, nn.optim.adamw, nn.optim.lamb])
def test_parameters_without_gradient_are_not_trained(optimiser):
    """PyTorch's way to freeze a part: ``requires_grad = False``, also for some of a group."""
    x = T.fmatrix("x")
    values = np.ones((2, 3), "float32")
    for params in (lambda net: net, lambda net: list(net.parameters()), lambda net: [(net, {})]):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        for p in net[0].parameters():
            p.requires_grad = False
        before = net.state_dict()
        loss = (net(x) ** 2).sum()
        symdnn.function([x], loss, updates=optimiser(loss, params(net), 0.1))(values)
        changed = {k for k, v in net.state_dict().items() if not np.array_equal(v, before[k])}
        assert changed == {"2.weight", "2.bias"}
        for p in net.parameters():
            p.requires_grad = False
        with pytest.raises(InputError, match="no parameter to train"):
            optimiser(loss, params(net), 0.1)
        net[0].weight.requires_grad = True
        optimiser(loss, params(net), 0.1)
