"""The training loop: measurements, stored weights, early stops, and files."""

import functools
import os
import signal
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.errors import FileFormatError, InputError, NanDetected, TypeMismatch
from tests.gpu.fake_device import fake_device

__all__ = ["fake_device"]

RNG = np.random.default_rng(11)
X = RNG.normal(size=(90, 6)).astype("float32")
LABELS = (X @ RNG.normal(size=(6, 3))).argmax(axis=1).astype("int32")
adam = nn.optim.adam


def make_net(width=8):
    return nn.Sequential(
        nn.Linear(6, width), nn.BatchNormalization(width), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(width, 3),
    )  # fmt: skip


def train_data(seed=3):
    return nn.batches((X[:70], LABELS[:70]), 16, shuffle=True, seed=seed)


def test_data():
    return nn.batches((X[70:], LABELS[70:]), 8)


test_data.__test__ = False


def fit(net=None, optimiser=adam, data=None, epochs=2, **options):
    return nn.fit(
        net or make_net(), nn.CrossEntropyCriterion(), optimiser, data or train_data(), epochs,
        **options,
    )  # fmt: skip


def assert_same(a, b):
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def without_seconds(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


def test_it_learns_and_measures():
    nn.init.seed(4)
    net, confusion = make_net(), nn.metrics.confusion_matrix(3)
    metrics = {"accuracy": nn.metrics.accuracy(), "confusion": confusion}
    history = fit(net, epochs=30, lr=0.02, validation=test_data(), metrics=metrics)
    assert len(history) == 30
    assert history["epoch"] == list(range(1, 31))
    assert history[-1]["step"] == 150
    assert history[-1]["accuracy"] > history[0]["accuracy"]
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert history[3]["confusion"].sum() == 70
    assert history[3]["val_confusion"].sum() == 20
    assert history[3]["val_accuracy"] == np.trace(history[3]["val_confusion"]) / 20
    best = min(history["val_loss"])
    assert history["val_loss"][history.best_epoch - 1] == best
    again = nn.measure(net, nn.CrossEntropyCriterion(), test_data(), metrics=metrics)
    assert again["loss"] == best  # the network has the best weights
    assert f"best {history.best_epoch}" in repr(history)


# -- going on ---------------------------------------------------------------------------------

OPTIMISERS = {
    "adam": functools.partial(adam, clip_norm=0.5),
    "accumulate": functools.partial(nn.optim.momentum, accumulate=3),
    "scaled": functools.partial(adam, loss_scale=None),
}


class Interrupted:
    """Raises KeyboardInterrupt after some steps."""

    def __init__(self, after):
        self.after = after

    def __call__(self, run):
        if run.step == self.after:
            raise KeyboardInterrupt


def trained(path, kind, **options):
    """Another process's part of a training: other initial values, and another seed of the data."""
    nets, runs = make_net(), []
    optimiser = adam if kind == "scaled" else OPTIMISERS[kind]
    if kind == "scaled":
        options["loss_scale"] = symdnn.LossScale(initial=64.0, interval=3)
    rate = nn.schedule.Plateau(0.05, 0.5, 0)
    settings = {"lr": rate, "validation": test_data(), "average": 0.9, "checkpoint": path}
    settings["metrics"] = {"accuracy": nn.metrics.accuracy(), "c": nn.metrics.confusion_matrix(3)}
    seed = options.pop("seed", 3)
    options["callbacks"] = [lambda run: runs.append(run)]
    try:
        history = fit(nets, optimiser, train_data(seed), **settings, **options)
    except KeyboardInterrupt:
        return None
    return nets.state_dict(), history, runs[-1]


@pytest.fixture
def compiled_at_once():
    """Kernels that are compiled during a training round differently from those before."""
    with config.change_flags({"cpu.compile": "always"}):
        yield


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("adam", None),
        ("scaled", 7),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in (("adam", 1), ("adam", 10))),
        pytest.param("accumulate", 7, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("compiled_at_once")
def test_a_training_goes_on_bit_for_bit(tmp_path, kind, after):
    nn.init.seed(1)
    whole, history, run = trained(tmp_path / "whole.safetensors", kind, epochs=4)
    nn.init.seed(1)
    path = tmp_path / "parts.safetensors"
    if after is None:
        assert trained(path, kind, epochs=2) is not None
    else:
        assert trained(path, kind, epochs=4, on_step=[Interrupted(after)]) is None
    nn.init.seed(2)
    assert path.exists()
    parts, going, other = trained(path, kind, epochs=4, resume=True, seed=99)
    assert_same(parts, whole)
    assert_same(other.updates.state_dict(), run.updates.state_dict())
    states = [{n: v.get_value() for n, v in r.steps.random.items()} for r in (run, other)]
    assert states[0]
    assert_same(*states)
    assert other.settings.schedule.state_dict() == run.settings.schedule.state_dict()
    for mine, wanted in zip(without_seconds(going), without_seconds(history), strict=True):
        assert_same(mine, wanted)
    assert going.best_epoch == history.best_epoch


def test_what_is_done_is_not_done_again(tmp_path):
    path = tmp_path / "c.safetensors"
    fit(epochs=2, checkpoint=path)
    before = path.read_bytes()
    assert len(fit(epochs=2, checkpoint=path, resume=True)) == 2
    assert path.read_bytes() == before
    assert len(fit(epochs=1, checkpoint=tmp_path / "new.safetensors", resume=True)) == 1


def test_a_checkpoint_of_something_else_changes_nothing(tmp_path):
    path, net = tmp_path / "c.safetensors", make_net()
    fit(checkpoint=path)
    before = net.state_dict()
    with pytest.raises(InputError, match=r"another net or optimiser: optimiser/sgd.* is missing"):
        fit(net, nn.optim.momentum, checkpoint=path, resume=True)
    assert_same(net.state_dict(), before)
    with pytest.raises(InputError, match=r"net/0.weight is float32\(8, 6\), wanted float32\(9, 6"):
        fit(make_net(9), checkpoint=path, resume=True)
    plain = tmp_path / "parameters.safetensors"
    from symdnn.io import save_parameters

    save_parameters(plain, net.state_dict())
    with pytest.raises(FileFormatError, match="no checkpoint of a training"):
        fit(checkpoint=plain, resume=True)
    with pytest.raises(FileFormatError, match="ends in .safetensors"):
        fit(checkpoint=tmp_path / "c.npz")


def test_ctrl_c_ends_the_step_and_leaves_a_checkpoint(tmp_path):
    seen = []

    def press(run):
        seen.append(run.step)
        if run.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("still here")

    path = tmp_path / "c.safetensors"
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=path, on_step=[press])
    assert seen == [1, 2, 3, "still here"]
    assert signal.getsignal(signal.SIGINT) is before
    steps = []
    fit(checkpoint=path, resume=True, on_step=[lambda run: steps.append(run.step)], epochs=1)
    assert steps == [4, 5]


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def press(run):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "c.safetensors", on_step=[press])
    assert not (tmp_path / "c.safetensors").exists()


# -- stopping ---------------------------------------------------------------------------------


def test_early_stopping_by_a_measure():
    net = nn.Linear(6, 3)
    still = functools.partial(nn.optim.sgd, lr=0.0)
    history = fit(net, still, epochs=9, validation=test_data(), patience=3)
    assert history.stopped == "val_loss was best in epoch 1, 3 epochs ago"
    assert len(history) == 4
    metrics = {"accuracy": nn.metrics.accuracy()}
    options = {"metrics": metrics, "monitor": "accuracy", "maximise": True, "min_delta": 1.0}
    history = fit(net, still, epochs=9, patience=2, **options)
    assert (len(history), history.best_epoch) == (3, 1)


def test_a_callback_stops_it():
    def callback(run):
        if run.epoch == 2:
            run.stop("enough")

    history = fit(epochs=9, callbacks=[callback])
    assert (len(history), history.stopped) == (2, "enough")


def test_a_loss_that_is_no_number_names_the_step(tmp_path):
    x = X[:64].copy()
    x[40] = np.nan
    data = nn.batches((x, LABELS[:64]), 16)
    with pytest.raises(NanDetected, match=r"the loss is nan in step 2 \(epoch 1, batch 2\) at the"):
        fit(data=data, lr=0.1, checkpoint=tmp_path / "c.safetensors")


# -- what is written --------------------------------------------------------------------------


def test_rows_go_to_csv(tmp_path):
    path, kept = tmp_path / "log.csv", tmp_path / "c.safetensors"
    fit(epochs=1, csv=path, checkpoint=kept)
    history = fit(epochs=3, csv=path, checkpoint=kept, resume=True, lr=None)
    lines = path.read_text().splitlines()
    assert lines[0] == "epoch,step,loss,seconds"
    assert len(lines) == 4
    assert [float(line.split(",")[2]) for line in lines[1:]] == history["loss"]


def fake_tensorboard(monkeypatch):
    """Fake modules of TensorBoard that record events."""
    events = []

    class Writer:
        def __init__(self, folder):
            events.append(folder)

        def add_event(self, event):
            events.append(event)

        def flush(self):
            events.append("flush")

        def close(self):
            events.append("close")

    class Summary(SimpleNamespace):
        Value = SimpleNamespace

    modules = {
        "tensorboard.compat.proto": {
            "event_pb2": SimpleNamespace(Event=SimpleNamespace),
            "summary_pb2": SimpleNamespace(Summary=Summary),
        },
        "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": Writer},
    }
    for name, inside in modules.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            part = ".".join(parts[:i])
            if part not in modules or part == name:
                module = ModuleType(part)
                vars(module).update(inside if part == name else {})
                monkeypatch.setitem(sys.modules, part, module)
    return events


def test_rows_go_to_tensorboard(tmp_path, monkeypatch):
    events = fake_tensorboard(monkeypatch)
    history = fit(epochs=2, tensorboard=tmp_path, lr=0.1)
    folder, first, _, second, _, closed = events
    assert (folder, closed) == (str(tmp_path), "close")
    assert (first.step, second.step) == (5, 10)
    values = {v.tag: v.simple_value for v in second.summary.value}
    assert values["loss"] == history[1]["loss"]
    assert set(values) == {"epoch", "loss", "rate", "seconds"}


def test_files_of_tensorboard_are_read_by_it(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    history = fit(epochs=2, tensorboard=tmp_path)
    (path,) = tmp_path.iterdir()
    found = [
        (e.step, v.tensor.float_val[0] if v.HasField("tensor") else v.simple_value)
        for e in EventFileLoader(str(path)).Load()
        for v in e.summary.value
        if v.tag == "loss"
    ]
    assert [step for step, _ in found] == history["step"]
    np.testing.assert_allclose([v for _, v in found], history["loss"], rtol=1e-6)


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in ("tensorboard", "tensorboard.compat.proto"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install symdnn\[tensorboard\]"):
        fit(tensorboard=tmp_path)


def test_a_bar_is_shown_to_those_who_look(capsys):
    fit(epochs=1)
    assert capsys.readouterr().out == ""
    fit(epochs=1, progress=True)
    assert "epoch 1  step 5  loss" in capsys.readouterr().out


# -- nets, batches, rates -----------------------------------------------------------------------


class Two(nn.Module):
    """w a + b: two inputs."""

    def __init__(self):
        self.parameter("w", (2,), nn.init.ones)

    def forward(self, a, b):
        return a * self.w + b


def squares(y, t):
    return ((y - t) ** 2).mean()


def test_batches_may_be_dicts_and_nets_have_several_inputs(rng):
    a, b = (rng.normal(size=(40, 2)).astype("float32") for _ in range(2))
    data = nn.batches({"a": a, "b": b, "t": a * np.float32([2, -3]) + b}, 8)
    net = Two()
    nn.fit(net, squares, nn.optim.sgd, data, 30, lr=0.3)
    np.testing.assert_allclose(net.w.get_value(), [2, -3], rtol=1e-3)


def test_inputs_may_be_targets():
    net = nn.Linear(6, 6)
    data = nn.batches(X, 16)
    history = nn.fit(net, squares, adam, data, 5, lr=0.05, targets=0)
    assert history["loss"][-1] < history["loss"][0] / 2


def test_groups_of_parameters():
    net = make_net()
    before = net.state_dict()
    params = [(net[0], {"lr_scale": 0.0}), (net[4], {})]
    fit(net, functools.partial(nn.optim.momentum, weight_decay=0.1), params=params, lr=0.1)
    after = net.state_dict()
    np.testing.assert_array_equal(after["0.weight"], before["0.weight"])
    assert (after["4.weight"] != before["4.weight"]).any()


def test_the_rate_follows_the_schedule():
    rates, lr = [], nn.schedule.exponential(0.1, 0.5)
    fit(lr=lr, on_step=[lambda run: rates.append(run.rate)], epochs=2)
    assert rates == [lr(i) for i in range(10)]


def test_modes_are_kept_and_what_is_frozen_stays_so():
    net = make_net()
    net[1].evaluate()
    statistics = net[1].running_mean.get_value()
    fit(net, validation=test_data())
    np.testing.assert_array_equal(net[1].running_mean.get_value(), statistics)
    assert [m.training for m in net] == [True, False, True, True, True]
    net.evaluate()
    fit(net)  # nothing is in training: then all is
    assert (net[1].running_mean.get_value() != statistics).any()
    assert not net.training


def test_averages_are_measured_and_kept():
    net, runs = make_net(), []
    history = fit(
        net, epochs=3, lr=0.05, average=0.5, validation=test_data(), keep_best=False,
        callbacks=[runs.append],
    )  # fmt: skip
    assert_same(net.state_dict(), runs[-1].steps.average.state_dict())
    found = nn.measure(net, nn.CrossEntropyCriterion(), test_data())
    assert found["loss"] == history[-1]["val_loss"]


def test_fp16_comes_with_a_scaled_loss():
    runs = []
    fit(amp="fp16", callbacks=[runs.append])
    assert "loss_scale" in runs[0].updates.state
    assert str(symdnn.config.amp) == "off"


@pytest.mark.parametrize("transform", [None, lambda b, rng: (b[0] + rng.normal(), b[1])])
@pytest.mark.usefixtures("compiled_at_once")
def test_prefetch_changes_no_bit(transform):
    states = []
    for ahead in (0, 3):
        nn.init.seed(5)
        net = make_net()
        data = nn.batches((X, LABELS), 16, shuffle=True, seed=1, transform=transform)
        if transform is not None:
            data.transform = lambda b, rng: (b[0] + rng.normal(size=6).astype("float32"), b[1])
        fit(net, data=data, prefetch=ahead)
        states.append(net.state_dict())
    assert_same(*states)


def test_on_a_device_with_arrays_there(rng, fake_device):
    a, b = (rng.normal(size=(20, 2)).astype("float32") for _ in range(2))
    arrays = (a, b, a * np.float32([2, -3]) + b)
    nets = [Two(), Two()]
    for net, options in zip(nets, ({}, {"mode": symdnn.Mode(target="cuda:sm_90"), "prefetch": 2})):
        data = nn.batches(arrays, 8, shuffle=True, seed=1)
        nn.fit(net, squares, adam, data, 4, lr=0.1, validation=nn.batches(arrays, 20), **options)
    np.testing.assert_allclose(nets[1].w.get_value(), nets[0].w.get_value(), rtol=1e-4)


def test_bad_arguments(tmp_path):
    with pytest.raises(InputError, match="net=3; wanted a module"):
        fit(3)
    with pytest.raises(InputError, match="data must give its batches for every epoch"):
        fit(data=iter([(X, LABELS)]))
    with pytest.raises(InputError, match="validation must give its batches"):
        fit(validation=iter([(X, LABELS)]))
    with pytest.raises(InputError, match="data has no batch"):
        nn.fit(make_net(), squares, adam, [], 1)
    with pytest.raises(InputError, match="a batch has 2 arrays, for 2 inputs of which the last 2"):
        fit(targets=2)
    with pytest.raises(InputError, match=r"monitor='val_loss'; there are loss, and"):
        fit(monitor="val_loss")
    with pytest.raises(InputError, match="resume=True needs checkpoint="):
        fit(resume=True)
    with pytest.raises(InputError, match="epochs=0"):
        fit(epochs=0)
    with pytest.raises(InputError, match="can't be named loss"):
        fit(metrics={"loss": squares})
    with pytest.raises(TypeMismatch, match="wanted a scalar loss"):
        nn.fit(make_net(), lambda y, t: y, adam, train_data(), 1)
    with pytest.raises(TypeMismatch, match="wanted a scalar loss"):
        nn.fit(make_net(), lambda y, t: T.constant(np.int32(1)), adam, train_data(), 1)
