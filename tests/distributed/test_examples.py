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
        ("tensor_parallel.py", ["--steps", "20"]),
        ("tensor_parallel.py", ["--steps", "5", "--tensor", "2"]),
        ("sharded.py", ["--epochs", "2"]),
        ("pipeline.py", ["--steps", "20"]),
    ],
)
def test_examples_are_the_same_for_any_number_of_processes(name, options):
    found = {}
    counts = (2, 4) if "--tensor" in options else (1, 2, 4)
    for count in counts:
        done = harness.run(count, FOLDER / name, *options)
        assert done.returncode == 0, done.stderr
        line = re.search(rf"^{count} processes[:,] .*", done.stdout, re.MULTILINE)
        assert line is not None, done.stdout
        numbers = re.findall(r"\d+\.\d+", line[0])
        found[count] = [float(n) for n in numbers]
    for count in counts[1:]:
        assert found[count] == pytest.approx(found[counts[0]], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_a_pipeline_does_not_need_sends_that_return_at_once(count):
    """Messages of 1 MiB, far more than an MPI buffers, by sends that wait for their receipts."""
    sizes = ["--steps", "2", "--rows", "256", "--width", "1024", "--micro-batches", "6"]
    program = harness.ROOT / "tests" / "distributed" / "waiting_sends.py"
    one = harness.run(1, FOLDER / "pipeline.py", *sizes)
    many = harness.run(count, program, FOLDER / "pipeline.py", *sizes)
    assert many.returncode == 0, many.stderr
    assert many.stdout.partition(":")[2] == one.stdout.partition(":")[2]
