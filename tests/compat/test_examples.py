"""The classic programs of ``examples/theano``: each ends with a check of a number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples" / "theano"


def run(name, *options):
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    environment = {k: v for k, v in os.environ.items() if k != "THEANO_FLAGS"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_program_runs_and_checks_itself():
    assert "accuracy with 80 labels" in run("denoising_autoencoder", "--epochs", "10")


def test_every_program_is_known():
    names = {"rbm", "lstm_sentiment", "hmc", "ntm_addressing", "denoising_autoencoder"}
    texts = {p.stem: p.read_text() for p in FOLDER.glob("*.py")}
    assert names <= set(texts)
    assert all("symdnn.compat.theano.install()" in texts[n] for n in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "lstm_sentiment", "hmc", "ntm_addressing"])
def test_the_others_do_too(name):
    assert run(name)
