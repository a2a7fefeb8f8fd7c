"""Each example runs at a small size and learns something."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import symdnn
import symdnn.onnx
import symdnn.tensor as T
from symdnn import nn
from tests.sources import program

FOLDER = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    return program(FOLDER / f"{name}.py")


def test_logistic_regression_learns() -> None:
    assert load("logistic_regression").main(["--steps", "60"]) < 0.2


def test_mlp_learns() -> None:
    assert load("mlp").main(["--epochs", "5"]) < 0.12


def test_autoencoder_beats_the_mean_image() -> None:
    assert load("autoencoder").main(["--steps", "150"]) < 0.06


def test_gru_text_beats_guessing_letters() -> None:
    options = ["--steps", "40", "--hidden", "48", "--length", "16", "--characters", "20000"]
    # 40 steps already know which letters are frequent: well under log(number of letters) = 4.6
    assert load("gru_text").main(options) < 3.6


def test_resnet_has_the_published_shape_and_its_loss_falls() -> None:
    options = ["--blocks", "1", "--width", "4", "--batch", "4", "--size", "8", "--steps", "4"]
    assert load("resnet20").main(options) < np.log(10)


def test_segmentation_finds_more_than_the_background() -> None:
    options = ["--size", "16", "--width", "8", "--images", "320", "--epochs", "5"]
    module = load("segmentation")
    accuracy = module.main(options)
    empty = (module.scenes(128, 16, 2)[1] == 0).mean()
    assert accuracy > empty + 0.05


def test_sequence_labelling_needs_both_directions() -> None:
    options = ["--hidden", "16", "--longest", "12", "--sentences", "512", "--epochs", "5"]
    assert load("sequence_labelling").main(options) > 0.95
    assert load("sequence_labelling").main([*options, "--one-way"]) < 0.93


def test_labels_of_sequences() -> None:
    module = load("sequence_labelling")
    tokens = [module.SIGNS.index(sign) for sign in "f)cad(bc(df)e("]
    labels = "".join(module.LABELS[i] for i in module.labels_of(np.array(tokens)))
    assert labels == "OOOOOOOOBIIIOO"


@pytest.mark.parametrize("name", ["segmentation", "sequence_labelling"])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(name).main(["--help"])
    assert end.value.code == 0
    assert "--epochs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_resnet_of_onnx_learns_a_new_task() -> None:
    assert load("onnx_finetune").main(["--epochs", "1", "--images", "200"]) > 0.8


@pytest.mark.parametrize("frozen", [["--frozen"], []])
def test_a_model_of_onnx_learns_a_new_task(frozen: list[str], tmp_path: Path) -> None:
    net = nn.Sequential(
        nn.SpatialConvolution(1, 32, 3, 3), nn.ReLU(), nn.SpatialMaxPooling(3, 3),
        nn.Flatten(), nn.Linear(32 * 16, 5), nn.LogSoftMax(),
    )  # fmt: skip
    images = T.tensor("float32", ("n", 1, 14, 16), name="pixels")
    symdnn.onnx.save({"log": net.evaluate()(images)}, tmp_path / "m.onnx")
    options = ["--file", str(tmp_path / "m.onnx"), "--epochs", "2", *frozen]
    assert load("onnx_finetune").main(options) > 0.75


def test_digits_by_layers_learn() -> None:
    assert load("digits_nn").main(["--epochs", "6"]) > 0.85


@pytest.mark.slow
def test_digits_by_layers_reach_the_goal_in_few_lines() -> None:
    assert load("digits_nn").main([]) >= 0.985
    assert len((FOLDER / "digits_nn.py").read_text().splitlines()) < 40


def test_fine_tuning_of_a_file_learns_from_few_images() -> None:
    assert load("fine_tuning").main(["--epochs", "2"]) > 0.7


def test_a_graph_network_finds_communities() -> None:
    found = load("graph_network").main(["--nodes", "400", "--classes", "3", "--steps", "60"])
    assert found > 0.85  # chance is 0.33


def test_chains_have_the_moments_of_the_posterior() -> None:
    assert load("hmc_hierarchical").main(["--chains", "48", "--draws", "160"]) < 0.12


@pytest.mark.slow
def test_nuts_finds_posteriors_known_by_quadrature() -> None:
    options = ["--draws", "250", "--warmup", "150", "--chains", "1"]
    assert load("nuts_posteriors").main(options) < 0.5


def test_a_layer_of_state_spaces_follows_its_formula() -> None:
    assert load("state_space_lm").off_from_formula("selective") < 1e-12


@pytest.mark.slow
def test_a_language_model_of_state_spaces_follows_its_formula_and_learns() -> None:
    options = ["--steps", "12", "--layers", "1", "--width", "32", "--length", "64", "--states", "4"]
    options += ["--speed", "64"]
    # Two kinds of layer are compared with their recurrences; 3.9 nats is a guess of all letters.
    assert load("state_space_lm").main([*options, "--selective"]) < 3.6


def test_a_flow_learns_and_its_density_is_exact() -> None:
    # The entropy of the best normal distribution is 2.6 nats.
    assert load("normalizing_flow").main(["--steps", "150", "--layers", "4"]) < 2.4


def test_variational_inference_comes_near_the_posterior() -> None:
    assert load("variational_gamma").main(["--steps", "600"]) < 0.2


@pytest.mark.slow
def test_variational_inference_finds_the_exact_posterior() -> None:
    assert load("variational_gamma").main([]) < 0.01


def test_every_example_is_tested() -> None:
    names = {p.stem for p in FOLDER.glob("*.py")}
    tested = Path(__file__).read_text()
    assert all(f'load("{name}")' in tested for name in names)


@pytest.mark.slow
def test_resnet20_has_the_published_number_of_layers(capsys: pytest.CaptureFixture[str]) -> None:
    load("resnet20").main(["--steps", "1", "--batch", "2"])
    assert capsys.readouterr().out.startswith("20 layers, ")


def test_the_notebook_runs_from_top_to_bottom(capsys) -> None:
    load("run_notebook").main([str(FOLDER / "tour.ipynb")])
    assert "user's line" in capsys.readouterr().out  # the report of the last cell


@pytest.mark.slow
def test_the_notebook_of_fine_tuning_learns_and_has_layers(capsys) -> None:
    load("run_notebook").main([str(FOLDER / "onnx_finetuning.ipynb")])
    text = capsys.readouterr().out
    assert float(re.search(r"odd digits: ([\d.]+)% right", text).group(1)) > 85
    assert "(OneDnnConv, " in text


def test_gaussian_process_finds_the_parameters() -> None:
    module = load("theano/gaussian_process")
    found = module.main(["--points", "120", "--steps", "150"])
    # The likelihood of the last step, by NumPy at the parameters after it.
    x_all, _, noisy = module.draw(170, 0)
    kept = np.setdiff1d(np.arange(170), np.random.default_rng(1).permutation(170)[:50])
    x, y = x_all[kept], noisy[kept]
    k = found["amplitude"] ** 2 * np.exp(-0.5 * ((x[:, None] - x) / found["length"]) ** 2)
    k += found["noise"] ** 2 * np.eye(len(x))
    likelihood = -0.5 * (
        y @ np.linalg.solve(k, y) + np.linalg.slogdet(k)[1] + len(x) * np.log(2 * np.pi)
    )
    assert abs(likelihood - found["likelihood"]) < 0.01
    assert abs(found["length"] - 0.7) < 0.15
    assert abs(found["noise"] - 0.2) < 0.05
    assert found["rmse"] < 0.15
    assert found["inside"] > 0.85


def test_distributed_examples_run_in_one_process() -> None:
    assert load("distributed/data_parallel").main(["--epochs", "3"]) > 0.85
    assert load("distributed/tensor_parallel").main(["--steps", "100"]) < 0.4
    assert load("distributed/pipeline").main(["--steps", "40"]) < 0.12


@pytest.mark.slow
def test_a_resnet_in_int8_is_as_accurate() -> None:
    assert load("resnet_int8").main(["--epochs", "2", "--planes", "8"]) < 0.02


def test_a_transformer_layer_in_float8_is_near() -> None:
    errors = load("transformer_float8").main(
        ["--width", "64", "--heads", "2", "--length", "16", "--batch", "2"]
    )
    assert errors["float32"] == 0
    assert 0 < errors["int8"] < errors["float8_e4m3fn"] < 0.08
