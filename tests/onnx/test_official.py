"""The official tests of the package onnx, all but those of ``left_out.py``."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace

import pytest

from tests import seeded
from tests.onnx.left_out import LEFT_OUT
from tests.onnx.official import cases, reason, run

#: The default suite runs one test of nodes in this many, others at each turn.
PART = 8
FILES = ["simple", "pytorch-converted", "pytorch-operator"]


def failures(chosen, mode="FAST_COMPILE", atol=0.0):
    wrong = []
    for case in chosen:
        if reason(case.name) is None:
            try:
                run(case, mode, atol)
            except Exception:
                wrong.append(f"{case.name}\n{traceback.format_exc(limit=-3)}")
    return wrong


def check(chosen, mode="FAST_COMPILE", atol=0.0):
    wrong = failures(chosen, mode, atol)
    assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong])


def test_some_nodes():
    check(seeded.part(cases("node"), PART))


@pytest.mark.slow
def test_all_nodes():
    check(cases("node"))


@pytest.mark.slow
def test_all_nodes_as_users_compile_them():
    check(cases("node"), None)


@pytest.mark.parametrize("kind", FILES)
def test_models_in_files(kind):
    check(cases(kind))


def test_a_wrong_result_fails():
    """The comparison can fail: a model with another one's data does."""
    found = {c.name: c for c in cases("node")}
    bad = replace(found["test_sin"], data_sets=found["test_cos"].data_sets)
    assert failures([bad])


def test_what_is_left_out_exists():
    names = [c.name for kind in ("node", *FILES) for c in cases(kind)]
    for pattern in LEFT_OUT:
        assert any(re.match(pattern, n) for n in names), f"{pattern} leaves nothing out"


def test_few_are_left_out():
    """What ``docs/onnx.md`` says of them."""
    count = sum(reason(c.name) is not None for c in cases("node"))
    assert count <= 51
