"""What rewriting makes of ten small models must stay as it is, or change on purpose."""

import pytest

from tests.golden import FOLDER, MODELS, path_of, text_of

ADVICE = "if that is meant: .venv/bin/python -m tests.golden, then look at git diff tests/golden"


@pytest.mark.parametrize("name", MODELS)
def test_phases_are_unchanged(name):
    assert text_of(name) == path_of(name).read_text(encoding="utf-8"), ADVICE


def test_no_text_is_left_over():
    assert {p.stem for p in FOLDER.glob("*.txt")} == set(MODELS)
