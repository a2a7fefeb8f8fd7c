"""``docs/needs.md`` has every need and feature, and each says where it is shown.

That what it names exists is looked at in :mod:`tests.test_docs`, for every page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS, FEATURES = 25, 116
NEED, FEATURE = r"^\| (\d+) \| .*$", r"^\| (?!feature)(\D.*)$"


@pytest.fixture(scope="module")
def page():
    needs, features = (ROOT / "docs" / "needs.md").read_text("utf-8").split("## The 116 features")
    return needs, features


def shown(line):
    """What a row names: a test, an example, a section of a page."""
    return re.findall(r"`(?:tests|examples)/[\w/.]+`|\]\([\w.#-]+\)", line)


def test_every_need_has_its_row_and_its_test(page):
    rows = re.findall(NEED, page[0], re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, NEEDS + 1))
    for line in re.finditer(NEED, page[0], re.MULTILINE):
        number = int(line[1])
        (*named,) = re.findall(r"`tests/needs/(test_(\d\d)_\w+\.py)`", line[0])
        assert [int(n) for _, n in named] == [number], line[0]


def test_every_test_of_a_need_is_on_the_page(page):
    for file in (ROOT / "tests" / "needs").glob("test_[0-9][0-9]_*.py"):
        assert f"`tests/needs/{file.name}`" in page[0]


def test_every_feature_says_where_it_is_shown(page):
    rows = [m[0] for m in re.finditer(FEATURE, page[1], re.MULTILINE)]
    rows = [r for r in rows if not r.startswith("|---")]
    assert len(rows) == FEATURES
    assert not [r for r in rows if not shown(r)]
