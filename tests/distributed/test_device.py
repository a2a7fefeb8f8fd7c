"""Programs of a GPU with collectives on 2 ranks, without a GPU."""

from tests.distributed import harness


def test_plans_of_a_gpu_run_their_collectives(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_TESTS_DEVICE", "emulated")
    harness.checks(2, tmp_path, "device_checks", flags="device=cuda")


def test_ranks_compile_and_measure_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMDNN_CHECKPOINTS", str(tmp_path))
    flags = f"device=cpu,cpu.compile=always,base_compiledir={tmp_path / 'code'}"
    harness.checks(2, tmp_path, "once_checks", flags=flags)
