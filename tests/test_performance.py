"""``performance=max``: the flags that it sets, what overrides it; the flag of relu's slope at 0."""

import os
import subprocess
import sys

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cli import main
from symdnn.config import Config, config
from symdnn.flags import FLAGS

SETS = FLAGS["performance"].presets["max"]


@pytest.fixture
def fresh():
    return Config({"SYMDNNRC": ""})


def test_what_it_sets_has_its_value_and_origin(fresh):
    before = {name: fresh.get(name) for name in SETS}
    assert all(before[name] != value for name, value in SETS.items())
    key = fresh.compile_key()
    fresh.performance = "max"
    rows = {row.name: row for row in fresh.table()}
    for name, value in SETS.items():
        assert fresh.get(name) == fresh.reader(name)() == rows[name].value == value
        assert rows[name].origin == fresh.origin(name) == "performance=max"
    others = [r for r in fresh.table() if r.name not in {*SETS, "performance"}]
    changed = {r.name for r in others if r.origin != "default"}
    assert changed == {"dnn.conv.algo_bwd", "gpu.relu_grad_at_0"}  # names of two and of one of them
    assert fresh.compile_key() != key
    fresh.performance = "default"
    assert {name: fresh.get(name) for name in SETS} == before
    assert fresh.compile_key() == key


@pytest.mark.parametrize("name", SETS)
def test_a_flag_that_is_set_goes_before(name, fresh):
    other = FLAGS[name].first_value()
    fresh.set(name, other)
    fresh.performance = "max"
    assert fresh.get(name) == fresh.reader(name)() == other
    assert fresh.origin(name) != "performance=max"
    fresh.restore(name, None)
    assert fresh.get(name) == SETS[name]
    with fresh.change_flags({name: other}):
        assert fresh.get(name) == other
    assert fresh.setting(name) is None


def test_in_the_environment_in_any_order():
    for text in ("performance=max,gpu.gemm.algo=guess", "gpu.gemm.algo=guess,performance=max"):
        found = Config({"SYMDNNRC": "", "SYMDNN_FLAGS": text})
        assert found.gpu.gemm.algo == "guess"
        assert found.dnn.conv.allow_tf32 is True


def test_within_a_block():
    with config.change_flags(performance="max"):
        assert config.dnn.conv.algo_fwd == "time_once"
    assert config.dnn.conv.algo_fwd == "small"


def test_the_command_says_what_it_sets(capsys):
    with config.change_flags(performance="max", **{"gpu.gemm.algo": "guess"}):
        assert main(["config", "performance"]) == 0
        text = capsys.readouterr().out
        assert "    dnn.conv.allow_tf32 = True\n" in text
        assert "    gpu.gemm.algo = time  (now guess)\n" in text
        assert main(["config", "dnn.conv.allow_tf32"]) == 0
        assert "origin:  performance=max" in capsys.readouterr().out


def test_the_benchmark_sets_nothing_else():
    from benchmarks.gpu.device import FLAGS as given

    names = {item.partition("=")[0] for item in given.split(",")}
    assert names == {"performance", "print_active_device"}


def test_a_network_trains_with_it_on_a_cpu(rng):
    x, w = T.ftensor4("x"), symdnn.shared(rng.normal(size=(4, 2, 3, 3)).astype("float32"))
    value = rng.normal(size=(2, 2, 6, 6)).astype("float32")
    found = []
    for performance in ("default", "max"):
        with config.change_flags(performance=performance):
            loss = T.nnet.relu(T.nnet.conv2d(x, w)).sum()
            found.append(symdnn.function([x], [loss, T.grad(loss, w)])(value))
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# -- relu_grad_at_0 ------------------------------------------------------------------------------

RELUS = {
    "relu": (T.nnet.relu, 0.0),
    "leaky relu": (lambda x: T.nnet.relu(x, 0.25), 0.25),
    "clipped relu": (lambda x: T.minimum(T.nnet.relu(x), 6), 0.0),
    "relu of a sum": (lambda x: T.nnet.relu(x + 0), 0.0),
    "max pooling of it": (lambda x: T.nnet.relu(x).max(axis=1), None),
}


@pytest.mark.parametrize("optimizer", ["fast_run", "fast_compile", "None"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", RELUS)
def test_the_slope_at_0(kind, dtype, optimizer):
    build, below = RELUS[kind]
    x = T.matrix("x", dtype=dtype)
    value = np.array([[-2, -0.0, 0.0, 3]], dtype)
    for word, share in (("half", 0.5), ("zero", 0.0)):
        with config.change_flags(relu_grad_at_0=word):
            dx = T.grad(build(x).sum(), x)
        mode = symdnn.Mode(optimizer=None if optimizer == "None" else optimizer)
        found = symdnn.function([x], dx, mode=mode)(value)[0]
        if below is not None:
            at_0 = below + share * (1 - below)
            np.testing.assert_allclose(found, [below, at_0, at_0, 1])
        else:
            np.testing.assert_array_equal(found, [0, 0, 0, 1])


def test_the_old_name_is_another_name_and_warns_once():
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    import symdnn\n"
        "print(symdnn.config.relu_grad_at_0, symdnn.config.gpu.relu_grad_at_0)\n"
        "print([str(w.message) for w in told])\n"
    )
    env = {**os.environ, "SYMDNN_FLAGS": "gpu.relu_grad_at_0=zero"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    values, told = done.stdout.splitlines()
    assert values == "zero zero"
    assert told.count("is now called relu_grad_at_0") == 1
