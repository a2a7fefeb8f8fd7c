"""The examples in several processes print what one process prints."""

import re

import pytest

from tests.distributed import harness

FOLDER = harness.ROOT / "examples" / "distributed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("data_parallel.py", ["--epochs", "2"]),
        ("tensor_parallel.py", ["--steps", "50"]),
        ("pipeline.py", ["--steps", "20"]),
    ],
)
def test_examples_are_the_same_for_any_number_of_processes(name, options):
    found = {}
    for count in (1, 2, 4):
        done = harness.run(count, FOLDER / name, *options)
        assert done.returncode == 0, done.stderr
        line = re.search(rf"^{count} processes: .*", done.stdout, re.MULTILINE)
        assert line is not None, done.stdout
        numbers = re.findall(r"\d+\.\d+", line[0])
        found[count] = [float(n) for n in numbers]
    assert found[2] == pytest.approx(found[1], rel=1e-3)
    assert found[4] == pytest.approx(found[1], rel=1e-3)
