"""The benchmark of whole nets' convolutions: which cases, how it goes on, and its sums."""

import json
from collections import Counter

import pytest

from benchmarks.gpu import net_algorithms as N


def measure(name, layer, direction, precision):
    """Two milliseconds for each case by symdnn, three by PyTorch."""
    return {"case": name, "symdnn_ms": 2.0, "torch_ms": 3.0}


def info():
    return {"case": "info", "gpu": "none"}


def test_the_nets_have_the_convolutions_of_their_papers():
    assert {net: len(layers) for net, layers in N.NETS.items()} == {
        "alexnet": 5, "vgg16": 13, "resnet50": 53
    }  # fmt: skip
    weights = sum(c * k * r * r for c, _, k, r, _, _ in N.NETS["resnet50"])
    assert weights == 23454912
    assert sum(c * k * r * r for c, _, k, r, _, _ in N.NETS["vgg16"]) == 14710464


@pytest.mark.parametrize(
    ("net", "billions"), [("alexnet", 0.656), ("vgg16", 15.35), ("resnet50", 4.09)]
)
def test_the_nets_have_as_many_products_as_is_known_of_them(net, billions):
    products = 0
    for channels, size, kernels, width, pad, stride in N.NETS[net]:
        out = (size + 2 * pad - width) // stride + 1
        products += channels * kernels * width**2 * out**2
    assert products / 1e9 == pytest.approx(billions, rel=2e-3)


def test_equal_convolutions_are_measured_once_and_counted():
    wanted = list(N.cases(["resnet50"], 64))
    assert len({name for name, *_ in wanted}) == len(wanted)
    first = Counter((direction, precision) for _, _, direction, precision in wanted)
    assert first[("fwd", "fp32")] == len(set(N.NETS["resnet50"]))
    assert first[("bwd_data", "fp32")] == first[("fwd", "fp32")] - 1


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path):
    path, asked = tmp_path / "out" / "cases.jsonl", []
    wanted = list(N.cases(["alexnet"], 2))

    def some(name, *rest):
        asked.append(name)
        if len(asked) == 2:
            raise RuntimeError("no room\nfor it")
        return measure(name, *rest)

    N.measure_left(path, wanted[:3], 60, some, info)
    assert len(N.measure_left(path, wanted, 0, some, info)) == 3  # with info; one failed
    found = N.measure_left(path, wanted, 60, some, info)
    assert asked.count(wanted[0][0]) == 1
    assert asked.count(wanted[1][0]) == 2
    assert set(found) == {"info", *(case[0] for case in wanted)}


def test_sums_are_of_complete_rows():
    wanted = list(N.cases(["alexnet", "vgg16"], 2))
    records = {case[0]: measure(*case) for case in wanted}
    rows = N.sums(records, ["alexnet", "vgg16"], 2)
    by = {(r["net"], r["direction"], r["precision"]): r for r in rows}
    assert by["vgg16", "fwd", "tf32"]["symdnn_ms"] == 26.0
    assert by["vgg16", "bwd_data", "bf16"]["torch_ms"] == 36.0
    del records[N.name_of(N.ALEXNET[1], 2, "fwd", "fp32")]
    rows = N.sums(records, ["alexnet"], 2)
    assert [r["missing"] for r in rows][:2] == [1, 0]
    text = N.table(rows)
    assert "| alexnet | fwd | fp32 |" not in text
    assert "| alexnet | fwd | tf32 | 5 | 10.00 | 15.00 | 1.50 |" in text
    assert "1 cases are left" in text


def test_the_command_without_measurements(tmp_path, capsys):
    assert N.main([str(tmp_path), "--report", "--nets", "alexnet"]) == 0
    assert "cases are left" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "sums.json").read_text())) == 9
    with pytest.raises(SystemExit):
        N.main([str(tmp_path), "--nets", "lenet"])
