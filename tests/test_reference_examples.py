"""The programs of examples/reference/: Theano's pages on both devices, the C one on a GPU."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu import libcudnn
from tests.sources import program

FOLDER = Path(__file__).parent.parent / "examples" / "reference"
THEANO = ("theano_gpuarray_dnn", "theano_sandbox_dnn")
WRAPPERS = FOLDER / "cudnn_python_wrappers.py"

on_gpu = pytest.mark.gpu


sys.path.append(str(FOLDER))  # Where a program that is run finds samples.py.

GPUARRAY, SANDBOX = (program(FOLDER / f"{name}.py") for name in THEANO)
LOWLEVEL = program(FOLDER / "pytorch_cudnn_lowlevel.py")
TORCH = program(FOLDER / "cudnn_torch.py")
EVERY_SAMPLE = [(m, name) for m in (GPUARRAY, SANDBOX, TORCH) for name in m.SAMPLES]
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])


@pytest.fixture(autouse=True)
def needs_a_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu"):
        from symdnn.gpu.dnn import dnn_available

        pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
        if not dnn_available():
            pytest.skip(dnn_available.msg)


@each_device
@pytest.mark.parametrize(
    ("module", "name"), EVERY_SAMPLE, ids=[f"{m.__name__}-{n}" for m, n in EVERY_SAMPLE]
)
def test_a_sample_runs(module: ModuleType, name: str, device: str) -> None:
    assert module.main(["--device", device, name]) == 0


@each_device
def test_what_the_ops_of_the_older_page_compute(device: str) -> None:
    with config.change_flags(device=device):
        for name in ("functions", "convolution_ops", "pooling_ops", "softmax_ops"):
            differences = SANDBOX.SAMPLES[name]()
            assert max(differences) < 1e-4, name


@each_device
def test_every_forward_algorithm_gives_the_same(device: str) -> None:
    with config.change_flags(device="cpu"):
        wanted = GPUARRAY.forward_algorithms()["small"]
    with config.change_flags(device=device):
        found = GPUARRAY.forward_algorithms()
    assert len(found) == 8
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted, 1e-3, 1e-3, err_msg=name)


@each_device
def test_every_backward_algorithm_gives_the_same(device: str) -> None:
    with config.change_flags(device="cpu"):
        wanted = GPUARRAY.backward_algorithms()["none"]
    with config.change_flags(device=device):
        found = GPUARRAY.backward_algorithms()
    assert len(found) == 7
    for name, values in found.items():
        for value, right in zip(values, wanted, strict=True):
            scale = float(np.abs(right).max())
            np.testing.assert_allclose(value / scale, right / scale, 1e-3, 1e-4, err_msg=name)


@each_device
def test_shapes_of_the_functions_of_the_list(device: str) -> None:
    with config.change_flags(device=device):
        assert GPUARRAY.convolution() == [
            (2, 4, 8, 8), (4, 3, 3, 3), (2, 3, 8, 8),
            (2, 4, 4, 3, 3), (4, 3, 2, 3, 3), (2, 3, 5, 7, 7),
        ]  # fmt: skip
        assert GPUARRAY.pooling() == [(2, 3, 4, 4)] * 5 + [(2, 3, 7, 7)]
        small = (1, 3, 1, 1)
        shapes = [(4, 3, 8, 8), small, small, (4, 3, 8, 8), small]
        assert GPUARRAY.batch_normalization() == shapes
        assert GPUARRAY.softmax() == [(2, 3, 4, 4)] * 3
        assert GPUARRAY.spatial_transformer() == [(2, 3, 8, 4)]


@each_device
def test_the_rnn_learns(device: str) -> None:
    with config.change_flags(device=device):
        before, after = GPUARRAY.rnn()
    assert after < 0.6 * before


@on_gpu
def test_the_rnn_is_the_same_on_both_devices() -> None:
    with config.change_flags(device="cpu"):
        wanted = GPUARRAY.rnn(steps=20)
    with config.change_flags(device="cuda"):
        np.testing.assert_allclose(GPUARRAY.rnn(steps=20), wanted, 1e-4)


def test_cudnn_is_not_on_a_cpu() -> None:
    with config.change_flags(device="cpu"):
        assert "the target is cpu" in GPUARRAY.required()
        assert SANDBOX.required() is False


@on_gpu
def test_cudnn_is_on_the_gpu() -> None:
    with config.change_flags(device="cuda"):
        assert GPUARRAY.paths()
        assert GPUARRAY.detection()
        assert GPUARRAY.required() == ""
        assert SANDBOX.required()


@each_device
def test_algorithms_by_number_and_by_name_give_the_same(device: str) -> None:
    with config.change_flags(device=device):
        numbered, named = LOWLEVEL.algorithm_by_number(1), LOWLEVEL.gradients_by_number()
    for a, b in zip(numbered, named, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4 * float(np.abs(b).max()))


@on_gpu
@pytest.mark.parametrize("direction", LOWLEVEL.DIRECTIONS)
def test_supported_algorithms_are_known_before_they_run(direction: str) -> None:
    assert {0, 1} <= set(LOWLEVEL.profile(direction, time=False))


def test_the_low_level_example_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert LOWLEVEL.main(["--device", "cpu"]) == 0
    assert "Requested fwd algorithm (1)" in capsys.readouterr().out


@each_device
@pytest.mark.parametrize(
    "name", ["spatial", "pointwise", "softmax", "batch_normalization", "volumetric", "recurrent"]
)
def test_modules_of_cudnn_torch_compute_the_same_without_cudnn(name: str, device: str) -> None:
    with config.change_flags(device=device):
        found = TORCH.SAMPLES[name]()
    assert max(difference for _, difference in found) < 1e-4


@each_device
def test_shapes_of_the_modules_of_cudnn_torch(device: str) -> None:
    with config.change_flags(device=device):
        assert [shape for shape, _ in TORCH.spatial()] == [
            (2, 6, 12, 6), (6, 12, 6), (2, 6, 10, 10), (6, 10, 10), (2, 6, 8, 8), (6, 8, 8),
            (2, 3, 7, 6), (3, 7, 6), (2, 3, 6, 6), (3, 6, 6),
        ]  # fmt: skip
        assert [shape for shape, _ in TORCH.volumetric()] == [
            (2, 4, 6, 8, 4), (4, 6, 8, 4), (2, 3, 3, 4, 4), (3, 3, 4, 4), (2, 3, 5, 4, 4),
            (3, 5, 4, 4),
        ]  # fmt: skip
        one_direction = [(5, 3, 16), (3, 5, 16)]
        both = [(5, 3, 32), (3, 5, 32)]
        assert [shape for shape, _ in TORCH.recurrent()] == [*one_direction * 4, *both]


@each_device
def test_modes_of_cudnn_torch_change_no_result_and_no_flag_for_good(device: str) -> None:
    flags = [config.setting(f"dnn.conv.{name}") for name in ("algo_fwd", "workspace_limit")]
    with config.change_flags(device=device):
        found = [*TORCH.modes(), *TORCH.modes_of_modules()]
        assert TORCH.backward_in_evaluation() > 0
        difference = TORCH.persistent()
    assert difference is None or difference < 1e-4
    for gradients in found[1:]:
        for a, b in zip(gradients, found[0], strict=True):
            np.testing.assert_allclose(a, b, 1e-3, 1e-4 * float(np.abs(b).max()))
    after = [config.setting(f"dnn.conv.{name}") for name in ("algo_fwd", "workspace_limit")]
    assert after == flags


def test_losses_of_untrained_scores() -> None:
    for loss in TORCH.criterions():
        assert np.log(3) < loss < 2


def test_the_trees_that_cudnn_torch_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert TORCH.main(["conversion"]) == 0
    tree = """nn.Sequential {
  [input -> (0) -> (1) -> output]
  (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)
  (1): %s.ReLU
}
"""
    assert capsys.readouterr().out.partition("\n")[2] == tree % "cudnn" + tree % "nn"


@pytest.mark.parametrize("name", [*THEANO, "pytorch_cudnn_lowlevel", "cudnn_torch"])
def test_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert stop.value.code == 0
    assert "--device" in capsys.readouterr().out


def test_what_the_program_for_c_functions_names_exists() -> None:
    tree = ast.parse(WRAPPERS.read_text(encoding="utf-8"))
    used = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
        and n.value.id == "libcudnn"
    }  # fmt: skip
    assert len(used) > 15
    assert [n for n in used if not hasattr(libcudnn, n)] == []


@on_gpu
def test_the_program_for_c_functions() -> None:
    pytest.importorskip("pycuda.driver", reason="it is a program for PyCUDA")
    done = subprocess.run(
        [sys.executable, str(WRAPPERS)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Cudnn algorithm = ")
    assert lines[1].endswith(" msecs")
    assert lines[2].startswith("32 elements checked")
