"""``fit`` and ``measure`` with arguments and data of wrong types, shapes and values."""

import sys
import types

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import IndexOutOfRange, InputError, SymdnnError
from symdnn.nn.training.bar import bar

X = np.ones((8, 4), "float32")
LABELS = (np.arange(8) % 3).astype("int32")


def data(x=X, t=LABELS):
    return nn.batches((x, t), 4)


def fit(**changed):
    given = {
        "net": nn.Linear(4, 3), "criterion": nn.CrossEntropyLoss(), "optimiser": nn.optim.adam,
        "data": data(), "epochs": 1, **changed,
    }  # fmt: skip
    return nn.fit(**given)


@pytest.mark.parametrize("name", ["adam", "SGD", "rmsprop", "lamb"])
def test_optimisers_by_name(name):
    assert len(fit(optimiser=name, lr=1e-3)) == 1


def test_metrics_by_name():
    history = fit(metrics=["accuracy", "top_2", nn.metrics.accuracy()][:2], validation=data())
    assert {"accuracy", "top_2", "val_accuracy"} <= set(history[-1])

    def largest(output, target):
        return output.max()

    history = fit(metrics=[largest])
    assert "largest" in history[-1]
    history = fit(metrics={"right": "accuracy", "same": nn.metrics.accuracy})
    assert history[-1]["right"] == history[-1]["same"]
    assert "accuracy" in nn.measure(
        nn.Linear(4, 3), nn.CrossEntropyLoss(), data(), metrics=["accuracy"]
    )


OPTIONS = {
    "net": [3, "x", None, nn.Linear],
    "criterion": [3, "mse", None, nn.MSELoss],
    "optimiser": ["adma", 3, None, lambda: [], lambda loss, params: 3, nn.optim],
    "data": [3, None, X, (X, LABELS), [], iter([(X, LABELS)]), (b for b in [(X, LABELS)]),
             [(X.astype(str), LABELS)], [(X, LABELS[:3])], [(X, np.int32(3))], [()], "xy",
             [(X,)], [(X, LABELS, X)]],
    "epochs": [0, -1, 1.5, "x", None, True],
    "lr": ["x", -1.0, float("nan"), T.fscalar(), lambda: 0.1, lambda step: "x", [0.1]],
    "params": [3, "x", [], [3], [(3, {})], {"a": 3}],
    "validation": [3, iter([(X, LABELS)]), [], [(X,)], [(X, LABELS[:3])]],
    "metrics": [3, "accuracy", ["acuracy"], [3], {"a": 3}, nn.metrics.accuracy(),
                {"loss": "accuracy"}, {"c": nn.metrics.confusion_matrix}],
    "targets": [-1, 2, 5, "x", None, 1.5],
    "inputs": [3, [3, 4], [T.fmatrix()]],
    "monitor": [3, "nothing", "val_loss"],
    "maximise": ["x", 3, None],
    "patience": [0, -1, "x", 1.5],
    "min_delta": [-1, "x", None],
    "keep_best": ["x", 3],
    "average": [1.0, -0.5, "x"],
    "checkpoint": [3, "file.npz"],
    "checkpoint_every": [0, "x", None],
    "resume": ["x", True],
    "csv": [3],
    "tensorboard": [3],
    "callbacks": [3, [3], print],
    "on_step": [3, ["x"]],
    "amp": ["bf8", 3],
    "loss_scale": [3, "x"],
    "prefetch": [-1, "x", None],
    "progress": ["x", 3],
    "distributed": ["x", 3],
    "mode": ["nonsense", 3],
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_a_wrong_option_is_an_error_of_ours(option):
    for wrong in OPTIONS[option]:
        try:
            fit(**{option: wrong})
        except (SymdnnError, ValueError) as error:
            ours = isinstance(error, SymdnnError) or "wanted" in str(error)
            if not ours:
                raise AssertionError(f"{option}={wrong!r:.60}: {error!r}") from error
        except Exception as error:
            raise AssertionError(f"{option}={wrong!r:.60}: {error!r}") from error
        else:
            raise AssertionError(f"{option}={wrong!r:.60} was accepted")


def test_every_option_is_tried():
    import inspect

    assert set(OPTIONS) == set(inspect.signature(nn.fit).parameters)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimiser": "adma"}, r"fit: optimiser='adma'; wanted a function or .*adam"),
        ({"criterion": nn.MSELoss}, r"fit: criterion=MSELoss; wanted MSELoss\(\)"),
        ({"epochs": "x"}, r"fit: epochs='x'; wanted an int"),
        ({"lr": -1.0}, r"fit: lr=-1.0; wanted 0 or more"),
        ({"lr": lambda step: "x"}, r"fit: lr gave 'x' in step 0; wanted a number"),
        ({"metrics": ["acuracy"]}, r"metrics: 'acuracy'; wanted 'accuracy'"),
        ({"data": (X, LABELS)}, r"nn.batches\(\(x, t\), size\)|a batch has 1 arrays"),
        ({"data": [(X, LABELS[:3])]}, r"arrays of shapes \(8, 4\), \(3,\); wanted one length"),
        ({"average": 1.0}, r"fit: average=1.0; wanted from 0 to less than 1"),
        ({"callbacks": [3]}, r"callbacks and on_step: 3; wanted functions"),
    ],
)
def test_messages(changed, message):
    with pytest.raises(InputError, match=message):
        fit(**changed)


def test_data_of_other_shapes_and_labels_out_of_range():
    with pytest.raises(SymdnnError):
        fit(data=data(np.ones((8, 5), "float32")))
    with pytest.raises(IndexOutOfRange, match="7"):
        fit(data=data(t=LABELS * 0 + 7))
    with pytest.raises(InputError, match="the first one had 2"):
        fit(data=[(X, LABELS), (X, LABELS, X)])
    with pytest.raises(SymdnnError):
        fit(data=[(X, LABELS), (X[:, :, None], LABELS)])


class UsedUp:
    """Its batches come once, though it can be iterated again."""

    def __init__(self):
        self.batches = [(X, LABELS)] * 2

    def __iter__(self):
        while self.batches:
            yield self.batches.pop()


def test_data_that_is_used_up_is_told():
    with pytest.raises(InputError, match="data gave no batch in epoch 2; it must give its batches"):
        fit(data=UsedUp(), epochs=3)
    used = UsedUp()
    used.batches = used.batches[:1]  # which the look at the first batch takes
    with pytest.raises(InputError, match="data gave no batch in epoch 1"):
        fit(data=used)


def test_lists_of_numbers_do_as_arrays():
    rows = [([[0.5, 1.0, 2.0, 3.0]] * 2, [0, 1])]
    assert len(fit(data=rows)) == 1


# -- the bar -------------------------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch):
    """What IPython shows in a kernel."""
    shown = []

    class Handle:
        def update(self, value):
            shown.append(value)

    def display(value, display_id=False):
        shown.append(value)
        return Handle()

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    inner = types.ModuleType("IPython.display")
    inner.HTML, inner.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return shown


@pytest.mark.parametrize("wanted", [None, True])
def test_a_notebook_shows_rows_and_a_bar_without_widgets(notebook, wanted, recwarn):
    fit(epochs=2, progress=wanted)
    assert notebook[-1].count("epoch ") == 2
    assert any("<progress" in s for s in notebook)
    assert not recwarn.list


def test_no_bar_where_it_is_not_wanted(notebook, capsys):
    fit(progress=False)
    assert not notebook
    sys.modules["IPython"].get_ipython = lambda: None
    fit()
    assert not notebook
    assert capsys.readouterr().out == ""


def test_a_bar_is_there_on_a_terminal(monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", property(lambda self: True))
    with bar(None) as shown:
        assert type(shown).__name__ == "_Shown"
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: False))
    with bar(None) as shown:
        assert type(shown).__name__ == "Bar"
