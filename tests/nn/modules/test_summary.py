"""Shapes, parameters and operations of networks, counted by hand."""

import pytest

import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch
from symdnn.nn.training.history import History


def network():
    return nn.Sequential(
        nn.SpatialConvolution(3, 8, 3, 3, groups=1),
        nn.SpatialBatchNormalization(8),
        nn.ReLU(),
        nn.Concat(1, nn.Identity(), nn.SpatialFullConvolution(8, 4, 3, 3, 1, 1, 1, 1)),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(12 * 16, 10),
    )


def test_rows_in_the_order_of_the_network():
    found = network().summary((2, 3, 6, 6))
    assert [(r.name, r.depth, r.output) for r in found.rows] == [
        ("", 0, "(2, 10)"), ("0", 1, "(2, 8, 4, 4)"), ("1", 1, "(2, 8, 4, 4)"),
        ("2", 1, "(2, 8, 4, 4)"), ("3", 1, "(2, 12, 4, 4)"), ("3.0", 2, "(2, 8, 4, 4)"),
        ("3.1", 2, "(2, 4, 4, 4)"), ("4", 1, "(2, 12, 4, 4)"), ("5", 1, "(2, 192)"),
        ("6", 1, "(2, 10)"),
    ]  # fmt: skip
    conv, full, dense = 2 * 8 * 16 * 27, 2 * 8 * 16 * 4 * 9, 2 * 192 * 10
    assert [r.flops for r in found.rows] == [
        2 * (conv + full + dense), 2 * conv, 0, 0, 2 * full, 0, 2 * full, 0, 0, 2 * dense
    ]  # fmt: skip
    assert [r.parameters for r in found.rows] == [
        224 + 16 + 292 + 1930, 224, 16, 0, 292, 0, 292, 0, 0, 1930
    ]  # fmt: skip
    assert (found.parameters, found.buffers) == (2462, 16)
    assert found.parameter_bytes == 4 * 2462
    assert found.flops == found.rows[0].flops


def test_the_table():
    text = str(network().summary((2, 3, 6, 6)))
    assert "input (2, 3, 6, 6)" in text
    assert "(0) nn.SpatialConvolution(3 -> 8, 3x3)" in text
    assert "    (1) nn.SpatialFullConvolution(8 -> 4, 3x3, 1,1, 1,1)" in text
    assert "parameters: 2,462 (0.01 MiB), statistics: 16" in text
    assert "FLOPs: 39,936" in text
    assert "\x1b" not in text


def test_nothing_changes():
    net = network()
    net[0].evaluate()
    net.summary((2, 3, 6, 6))
    assert (net.training, net[0].training, net[1].training) == (True, False, True)
    assert net[4].calls == 0


@pytest.mark.parametrize(
    ("net", "shape", "dtype", "flops"),
    [
        (nn.SpatialConvolution(4, 8, 3, 3, 1, 1, 1, 1, 2), (1, 4, 5, 6), None, 2 * 8 * 30 * 18),
        (nn.VolumetricConvolution(2, 3, 2, 2, 2), (2, 3, 4, 5), None, 2 * 3 * 24 * 16),
        (nn.TemporalConvolution(4, 6, 3), (2, 7, 4), None, 2 * 2 * 5 * 6 * 12),
        (nn.Linear(4, 6), (2, 7, 4), None, 2 * 2 * 7 * 24),
        (nn.Linear(4, 6), (4,), None, 2 * 24),
        (nn.LookupTable(10, 6), (4, 7), "int64", 0),
        (nn.LSTM(4, 6, 1), (5, 2, 4), None, 2 * 5 * 2 * 4 * (6 * 4 + 6 * 6)),
        (nn.BGRU(4, 6, 2), (5, 2, 4), None, 2 * 10 * 3 * 2 * (6 * 4 + 36 + 6 * 12 + 36)),
    ],
    ids=lambda v: repr(v) if isinstance(v, nn.Module) else None,
)
def test_operations(net, shape, dtype, flops):
    assert nn.summary(net, shape, dtype=dtype).flops == flops


def test_a_module_that_is_called_twice_counts_its_parameters_once():
    one = nn.Linear(3, 3)
    found = nn.Sequential(one, nn.ReLU(), one).summary((5, 3))
    assert found.parameters == 12
    assert found.flops == 2 * (2 * 5 * 9)
    assert [r.name for r in found.rows] == ["", "0", "1", "0"]


def test_tables_and_symbolic_inputs():
    x = T.TensorType("float32", (2, 3))("x")
    found = nn.summary(nn.Sequential(nn.ConcatTable(nn.Linear(3, 4), nn.Identity())), x)
    assert found.rows[0].output == "[(2, 4), (2, 3)]"
    assert nn.summary(nn.CAddTable(), (2, 3), (2, 3)).inputs == ("(2, 3)", "(2, 3)")


def test_published_counts_of_known_networks():
    with nn.init.skipped():
        found = nn.models.resnet18().summary((1, 3, 224, 224))
    assert found.parameters == 11_689_512
    assert found.flops == pytest.approx(2 * 1.814e9, rel=1e-3)  # torchvision: 1.814 GMACs


def test_what_does_not_fit():
    net = network()
    with pytest.raises(InputError, match="wanted an input's shape"):
        net.summary()
    with pytest.raises(TypeMismatch, match="summary: wanted the shape of an input"):
        net.summary("3x3")
    with pytest.raises(ShapeMismatch):
        net.summary((2, 4, 6, 6))
    with pytest.raises(InputError, match="wanted static sizes"):
        nn.summary(nn.Linear(3, 4), T.TensorType("float32", (None, 3))("x"))
    assert all(m.training for _, m in net.named_modules())


def test_a_notebook_shows_tables_of_summaries_and_histories():
    net = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    shown = nn.summary(net, (5, 4))._repr_html_()
    assert shown.count("<tr>") == 1 + len(nn.summary(net, (5, 4)).rows)
    assert "padding-left: 2.5em" in shown  # the inner layers
    assert "parameters: 23" in shown
    history = History([{"epoch": 1, "loss": 0.51239}, {"epoch": 2, "loss": 0.25, "val_loss": 1.0}])
    assert "<td>0.5124</td>" in history._repr_html_()
    assert "<th>val_loss</th>" in history._repr_html_()
