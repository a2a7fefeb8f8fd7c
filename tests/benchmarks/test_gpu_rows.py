"""``benchmarks.gpu.rows``: numbers are looked at before times, and one row does not hide others."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from benchmarks.cpu.nest import Nest, drawn
from benchmarks.gpu import rows
from benchmarks.gpu.device import Device
from benchmarks.transforms import loops, vmap


class _Numpy(rows.Peer):
    """NumPy as a peer."""

    version = np.__version__

    def __init__(self, on_gpu):
        pass

    def call(self, f, arrays, compiled=False):
        return lambda: f(*arrays), lambda: 1024

    def host(self, value):
        return np.asarray(value, np.float64)


def printed(capsys, monkeypatch, found, **options):
    monkeypatch.setenv("SYMDNN_FLAGS", "")
    monkeypatch.setattr(rows, "_Torch", _Numpy)
    monkeypatch.setattr(rows, "_Jax", _Numpy)
    parser = argparse.ArgumentParser()
    rows.arguments(parser, seconds=50)
    given = parser.parse_args(["--tiny"])
    vars(given).update(options)
    assert rows.measure(given, found, compare=True) == 0
    return capsys.readouterr().out


def test_wrong_numbers_are_said_and_have_no_time(capsys, monkeypatch, tmp_path):
    x = drawn(5, 4)
    right = Nest("right", (x,), lambda v: T.exp(v).sum(), torch=lambda v: np.exp(v).sum())
    wrong = Nest("wrong", (x,), lambda v: T.exp(v).sum(0), torch=lambda v: v.sum(0))
    shape = Nest("shape", (x,), lambda v: T.exp(v), torch=lambda v: np.exp(v)[:1])
    broken = Nest("broken", (x,), lambda v: v.no_such(), torch=np.exp)
    peer = Nest("peer", (x,), T.exp, torch=np.exp, jax=lambda v: v / 0 * np.nan + v)
    file = tmp_path / "table.txt"
    with np.errstate(all="ignore"):
        text = printed(capsys, monkeypatch, [right, wrong, shape, broken, peer], out=str(file))
    assert "5 rows, 0 left out" in text
    assert "FAIL  right" not in text
    for name, what in (("wrong", "wrong by"), ("shape", "wrong shape"), ("broken", "no_such")):
        line = next(s for s in text.splitlines() if f"FAIL  {name} " in s)
        assert what in line
    assert "JAX inf" in text
    assert "JAX: ValueError: wrong by nan" in text
    for line in file.read_text().splitlines():
        assert line in text


def test_a_formula_of_the_records_own_numbers_alone_has_no_time(monkeypatch):
    """Its results have other shapes, also where no numbers are looked at."""
    monkeypatch.setattr(rows, "_Torch", _Numpy)
    monkeypatch.setattr(rows, "_Jax", _Numpy)
    run = rows.Run(Device(False), False, 0.0)
    x = drawn(5, 4)
    row = Nest("a", (x,), lambda v: v.sum(1), torch=lambda v: np.zeros(3), jax=lambda v: v.sum(1))
    ready = run.prepared(row)
    assert "PyTorch: ValueError: results of shapes [(3,)], not [(5,)]" in ready.notes
    with pytest.raises(ValueError, match="failed"):
        ready.calls["torch"][0]()
    assert ready.calls["jax"][0]().shape == (5,)


def test_rows_without_time_are_counted(capsys, monkeypatch):
    row = Nest("a", (drawn(3),), T.exp, torch=np.exp)
    assert "0 rows, 1 left out" in printed(capsys, monkeypatch, [row], seconds_in_all=0)


@pytest.mark.parametrize("name", ["jacobian of a layer of 100", "hessian of 200, Rosenbrock"])
def test_the_program_of_a_gpu_runs_rows_of_vmap(name, capsys, monkeypatch):
    monkeypatch.setenv("SYMDNN_FLAGS", "")
    assert (
        vmap.main(["--device", "cuda", "--tiny", "--seconds-in-all", "900", "--only", f"^{name}"])
        == 0
    )
    text = capsys.readouterr().out
    assert "1 rows, 0 left out" in text
    assert "FAIL" not in text


def test_rows_for_a_gpu_have_names_of_their_own():
    names = [r.name for r in (*vmap.rows(), *vmap.wide_rows(), *loops.rows())]
    assert len(set(names)) == len(names) > 40


def test_programs_with_loops_run(capsys, monkeypatch):
    monkeypatch.setenv("SYMDNN_FLAGS", "")
    only = "^loop (fori_loop|while_loop|conjugate gradients 20|Kalman|complex|QR)"
    assert (
        loops.main(["--device", "cuda", "--tiny", "--seconds-in-all", "900", "--only", only]) == 0
    )
    text = capsys.readouterr().out
    assert "6 rows, 0 left out" in text
    assert "FAIL" not in text


def test_processes_with_one_lock_measure_after_they_compiled(capsys, monkeypatch, tmp_path):
    rows = [Nest(name, (drawn(300),), T.exp, torch=np.exp) for name in ("first", "second")]
    text = printed(capsys, monkeypatch, rows, lock=str(tmp_path / "lock"))
    assert "2 rows, 0 left out" in text
    (line,) = [line for line in text.splitlines() if "  second " in line]
    assert "PyTorch" in line
    assert f"{1024 / 1200:.2f}" in line.split()[1]  # its bytes over those of the result


def test_the_gradient_of_ties_is_not_compared(capsys, monkeypatch):
    """One library gives each of equal extremes all of it, another one a share."""

    def shared(v, share=1.0):
        ties = v == v.max(1, keepdims=True)
        return share * ties / ties.sum(1, keepdims=True)

    def tied(rng_shape=(6, 8)):
        return np.random.default_rng(1).integers(0, 3, rng_shape).astype("float32")

    def ours(v):
        return symdnn.grad(v.max(1).sum(), v)

    some = Nest("ties", (tied,), ours, torch=shared)
    apart = Nest("apart", (drawn(6, 8),), ours, torch=lambda v: shared(v, 2.0))
    lost = Nest("lost", (tied,), lambda v: ours(v) * np.nan, torch=shared)
    text = printed(capsys, monkeypatch, [some, apart, lost])
    assert "FAIL  ties" not in text
    assert "symdnn: compared without ties" in text
    for name, far in (("apart", "5.0e-01"), ("lost", "nan")):
        assert f"wrong by {far}" in next(s for s in text.splitlines() if f"FAIL  {name} " in s)
