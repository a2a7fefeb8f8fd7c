"""Hints are checked where they are made: a misspelt one would else be ignored far away."""

import pickle
import runpy

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.graph.origin import Hints, Origin, hinted


def test_the_lines_are_those_of_the_program_alone(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import symdnn.tensor as T\ny = T.exp(T.matrix())\n")
    text = runpy.run_path(str(script))["y"].owner.origin.text()
    assert f'File "{script}", line 2' in text
    assert "<frozen" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algo_fwd", "fastest"),
        ("algo_bwd_data", True),
        ("algo_bwd_filter", 1.5),
        ("precision", "fp8"),
        ("algo", "persist"),
        ("algo", 1),
    ],
)
def test_a_wrong_word_is_named_with_those_that_are_right(name, value):
    with pytest.raises(ValueError, match=f"Hints: {name}={value!r}; wanted one of"):
        Hints(**{name: value})


def test_what_flags_take_and_numbers_are_hints():
    hints = Hints(
        backend="of my own", algo_fwd="time_once", algo_bwd_data=np.int64(1), algo="guess",
        precision="tf32",
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(hints)) == hints
    # A node and its gradients share hints, so a word of one direction may stand with another.
    assert Hints(algo_fwd="deterministic")


def test_hints_of_a_block_with_the_users_own_lines():
    x = T.vector("x")
    with hinted(Hints(backend="cudnn")):
        y = x + 1
        with hinted(Hints(backend="nn")):
            z = x * 2
        after = x - 1
    assert y.owner.hints.backend == after.owner.hints.backend == "cudnn"
    assert z.owner.hints.backend == "nn"
    assert not (x + 3).owner.hints
    assert "test_origin" in str(y.owner.origin)


def test_the_lines_of_a_joined_node_are_told_once():
    x = T.vector("x")
    one, two = T.exp(x).owner.origin, T.tanh(x).owner.origin
    other = T.sin(x).owner.origin
    joined = Origin.of_several([("Exp", one), ("Sin", other), ("Tanh", two), ("Exp", one)])
    told = [line for line in joined.text().splitlines() if "of which" in line]
    assert told == ["  of which Exp, Tanh:", "  of which Sin:"]
