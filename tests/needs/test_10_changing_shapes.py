"""Need 10: changing shapes neither stall nor leak."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.algorithm import choose
from symdnn.gpu.conv.launch import signature
from symdnn.tuning import allowance
from symdnn.tuning.attempts import Attempt
from symdnn.tuning.question import Question, answer
from tests.gpu.conv.test_algorithm import both, node_of  # noqa: F401
from tests.gpu.conv.test_cudnn_algorithm import FORWARD_SIZE, refuse_algorithms
from tests.gpu.fake_cudnn import conv, fake  # noqa: F401

registry.load()

#: A child process: the growth, in MB, over sizes that were never seen, and what ``free`` leaves.
CHILD = Path(__file__).with_name("changing_shapes.py")


def grown(count: int, device: str = "cpu") -> tuple[float, float]:
    """(MB grown over ``count`` sizes in which a network is trained, MB left after ``f.free()``)."""
    command = [sys.executable, str(CHILD), str(count), device, "train"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    more, left, _ = map(float, done.stdout.split())
    return more, left


@pytest.mark.cpu
def test_sizes_that_do_not_return_leave_nothing():
    """The first hundred fill what is bounded; the next two hundred add next to nothing."""
    more, left = grown(300)
    assert more < 50
    assert left < 0.6 * more


@pytest.mark.slow
@pytest.mark.cpu
def test_a_thousand_sizes_grow_memory_by_less_than_50_mb():
    more, left = grown(1000)
    assert more < 50
    assert left < 0.6 * more


@pytest.mark.gpu
def test_a_thousand_sizes_on_a_card():
    more, left = grown(1000, "cuda")
    assert more < 50
    assert left < more


class Convolution(Question[str]):
    """A question whose measurement takes 4 ms."""

    family = "test"

    def __init__(self, size: int) -> None:
        self.key = {"size": size}

    def measured(self) -> tuple[list[Attempt[str]], str]:
        time.sleep(0.004)
        return [Attempt("fast", 1.0)], ""

    def record(self, best: Attempt[str]) -> dict[str, object]:
        return {"name": best.candidate, "ms": best.ms}

    def revived(self, record: dict[str, object]) -> Attempt[str]:
        return Attempt(str(record["name"]), 1.0)

    def not_allowed(self, reason: str) -> None:
        assert "dnn.conv.time_total" in reason


@pytest.fixture
def budget(tmp_path):
    """40 ms for all measurements, and an empty folder of choices."""
    allowance.forget_spent()
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path), "dnn.conv.time_total": 40}):
        yield
    allowance.forget_spent()


def test_tuning_of_a_thousand_sizes_keeps_to_one_budget(budget):
    """The last measurement may end behind the bound; after it everything is a guess."""
    began = time.perf_counter()
    answers = [answer(Convolution(size)) for size in range(1000)]
    took = time.perf_counter() - began
    timed = sum(found is not None for found in answers)
    assert 1 <= timed <= 11
    assert answers[-1] is None
    assert took < 5
    assert answer(Convolution(0)) is not None  # what is on disk stays usable


def test_a_size_is_guessed_first_and_measured_when_it_returns(tmp_path):
    """The first plan is measured at once, as before; a record is used wherever it is found."""
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path)}):
        with allowance.visiting(may_measure=True):
            assert answer(Convolution(1)) is not None
        with allowance.visiting(may_measure=False) as visit:
            assert answer(Convolution(1)) is not None
            assert not visit.postponed
            assert answer(Convolution(2)) is None
            assert visit.postponed
        with allowance.visiting(may_measure=True):
            assert answer(Convolution(2)) is not None


def test_time_once_takes_a_new_size_without_an_error_and_says_so(both, monkeypatch):  # noqa: F811
    """A node's first choice that a later size refuses becomes a guess, and the report says so."""
    large = conv(algo="time_once", x=(2, 4, 7, 6))
    node = node_of(large)
    monkeypatch.setattr(conv_tuning, "measured", lambda search: None)
    first = choose(signature(large), 0, node)
    refuse_algorithms(both, FORWARD_SIZE, first.candidate.number, 3, 4, 5, 6, 7)
    other = choose(signature(conv(algo="time_once", x=(2, 4, 9, 9))), 0, node)
    assert other.candidate.key != first.candidate.key
    assert other.instead_of == f"{first.candidate.name}, the node's first choice"
