"""The classic programs of ``examples/theano``: each gives a number, which is compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeded import sampled

FOLDER = Path(__file__).parents[3] / "examples" / "theano"

#: Of each program options of a short run, a bound on what it gives, and on that of a whole one.
#: Chance is 0.5 for sentiments and bits, 0.1 for the classes, 0.0005 for bars.
PROGRAMS = {
    "rbm": (["--epochs", "25"], lambda gap, share: gap > 2, lambda gap, share: share > 0.4),
    "lstm_sentiment": (["--epochs", "6", "--sentences", "600"], lambda right: right > 0.6,
                       lambda right: right > 0.9),
    "hmc": (["--samples", "150", "--chains", "50"], lambda wrong: wrong < 0.3,
            lambda wrong: wrong < 0.15),
    "ntm_addressing": (["--steps", "60"], lambda right: right > 0.9, lambda right: right > 0.95),
    "denoising_autoencoder": (["--epochs", "10"], lambda left, right: left < 0.6 and right > 0.9,
                              lambda left, right: left < 0.3 and right > 0.95),
}  # fmt: skip

#: Runs the programs that it is given, with their options, in a process of their own: they are
#: Theano's from their first line on.
RUN = """
import importlib.util, json, sys
found = {}
for path, options in json.loads(sys.argv[1]).items():
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    numbers = module.main(options)
    found[path] = numbers if isinstance(numbers, tuple) else [numbers]
print(json.dumps(found))
"""


def run(programs):
    asked = json.dumps({str(FOLDER / f"{name}.py"): options for name, options in programs.items()})
    environment = {k: v for k, v in os.environ.items() if k != "THEANO_FLAGS"}
    command = [sys.executable, "-c", RUN, asked]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert found.returncode == 0, found.stderr
    return {Path(p).stem: v for p, v in json.loads(found.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("name", sampled(PROGRAMS, every=3))
def test_every_program_learns_something_in_a_short_run(name):
    options, right, _ = PROGRAMS[name]
    numbers = run({name: options})[name]
    assert right(*numbers), numbers


def test_every_program_is_known():
    """But the one that ``tests/test_examples.py`` runs, which imports symdnn itself."""
    texts = {p.stem: p.read_text() for p in FOLDER.glob("*.py")}
    assert {*PROGRAMS, "gaussian_process"} == set(texts)
    assert all("symdnn.compat.theano.install()" in texts[n] for n in PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_reaches_its_number(name):
    numbers = run({name: []})[name]
    assert PROGRAMS[name][2](*numbers), numbers


@pytest.mark.slow
def test_a_program_is_run_as_a_script():
    path = FOLDER / "denoising_autoencoder.py"
    command = [sys.executable, str(path), "--epochs", "10"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert "accuracy with 80 labels" in found.stdout
