"""The demonstration: it learns, writes its files, and evaluates what it saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from symdnn import cli, demo
from symdnn.demo import data
from symdnn.io import save_parameters


def test_moved_shifts_by_at_most_one_pixel() -> None:
    image = np.zeros((40, 1, 8, 8), "float32")
    image[:, 0, 4, 4] = 1
    moved = data.moved(image, np.random.default_rng(0))
    _, _, rows, columns = np.nonzero(moved)
    assert len(rows) == 40
    assert set(rows) == set(columns) == {3, 4, 5}


def test_split_is_the_documented_one() -> None:
    digits = data.load_digits()
    assert digits.train_x.shape == (1347, 1, 8, 8)
    assert digits.test_x.shape == (450, 1, 8, 8)
    assert np.bincount(digits.test_y).min() >= 43  # stratified


@pytest.mark.cpu
def test_demo_learns_saves_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--epochs", "5", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Conv" in printed
    assert "numpy." in printed
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {
        "parameters.npz", "parameters.safetensors", "curves.png", "filters.png", "confusion.png",
    }  # fmt: skip
    accuracy = float(printed.rsplit("test accuracy ", 1)[1].split(" %")[0])
    assert accuracy > 90
    for name in ("parameters.npz", "parameters.safetensors"):
        demo.main(["--load", str(tmp_path / name)])
        assert f"test accuracy {accuracy:.2f} %" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_reaches_its_goal(tmp_path: Path) -> None:
    assert demo.main(["--out", str(tmp_path), "--seeds", "5"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--load", "nowhere.npz"], "nowhere.npz"),
        (["--load", "other.npz"], "conv1.w"),
        (["--load", "other.txt"], "the suffix must be one of"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save_parameters("other.npz", {"w": np.zeros(3)})
    (tmp_path / "other.txt").write_text("text")
    assert cli.main(["demo", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("symdnn: ")
    assert said in printed


@pytest.mark.parametrize("option", ["--seeds", "--epochs"])
def test_it_trains_at_least_once(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main([option, "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.cpu
@pytest.mark.parametrize("option", ["--steps", "--length"])
def test_a_gpt_needs_a_step_and_a_character(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["gpt", option, "0"])
    assert f"{option}: wanted an integer of at least 1, got 0" in capsys.readouterr().err


def test_a_gpt_learns_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["gpt", "--steps", "3", "--length", "8", "--out", str(tmp_path)]
    assert demo.main(arguments) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"attention.png", "sample.txt"}
    sample = (tmp_path / "sample.txt").read_text()
    assert sample.startswith("The statement")
    assert len(sample) == len("The statement") + 8
    assert sample in capsys.readouterr().out


@pytest.mark.slow
def test_a_gpt_knows_some_of_the_manual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["gpt", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    bits = float(printed.split(" bits a character")[0].rsplit("(", 1)[1])
    assert bits < 3.5  # a table of pairs of letters needs 3.54
