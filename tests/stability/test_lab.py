"""The table of programs: values and gradients against mpmath."""

from __future__ import annotations

import pytest

from tests.stability.dialects import Symdnn
from tests.stability.lab import Case, short, whole

#: The gradient of a sum of log-softmaxes is 1 - n p, in float32 of a p that is rounded.
KNOWN = {("log_softmax(X)", "float32"), ("log(M(softmax(X)))", "float32")}


@pytest.fixture(scope="module")
def dialect():
    return Symdnn()


@pytest.mark.parametrize("case", list(short()), ids=str)
def test_program(case: Case, dialect) -> None:
    value, slope = case.judge(dialect)
    assert not value
    assert not slope or (case.form.text, case.dtype) in KNOWN


@pytest.mark.slow
@pytest.mark.parametrize("text", list(dict.fromkeys(c.form.text for c in whole())))
def test_program_in_all_variants(text: str, dialect) -> None:
    wrong = {
        str(c): found for c in whole() if c.form.text == text and any(found := c.judge(dialect))
    }
    assert not wrong
