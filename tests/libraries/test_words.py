"""The words that choose rewrites: what they include, unknown ones, and those of Theano."""

from __future__ import annotations

from pathlib import Path

import pytest

import symdnn.tensor as T
from symdnn import Mode, config, function
from symdnn.errors import ConfigError, RewriteError
from symdnn.libraries import words as tags
from symdnn.libraries.table import ALL_RULES as RULES
from symdnn.opt.phases import PHASES, Selection


@pytest.mark.parametrize("word", ["canonicalize", "algebra", "stabilize", *PHASES])
def test_a_phase_or_tag_includes_nothing_that_has_to_be_asked_for(word: str) -> None:
    chosen = Selection().including(word)
    assert not [r.name for r in RULES if "optional" in r.tags and chosen.takes(r)]
    x = T.fvector("x")
    assert function([x], x * 2, mode=Mode(target="cpu").including(word))([3]) == [6]


@pytest.mark.parametrize("asked", ["unsafe", "mul_zero_float"])
def test_optional_rules_are_included_by_their_names_and_tags(asked: str) -> None:
    (rule,) = [r for r in RULES if r.name == "mul_zero_float"]
    assert Selection().including(asked).takes(rule)


WRONG = [("fuson", "fusion"), ("cuddn", "cudnn"), ("Canonicalise", "canonicalize"),
         ("local_log1", "local_log1p"), ("log_of_sofmax", "log_of_softmax")]  # fmt: skip


@pytest.mark.parametrize(("word", "meant"), WRONG)
@pytest.mark.parametrize("how", ["including", "excluding", "requiring"])
def test_unknown_words_are_refused_with_the_nearest(word: str, meant: str, how: str) -> None:
    x = T.fvector("x")
    with config.change_flags(**{f"optimizer_{how}": f"fusion:{word}"}):
        with pytest.raises((ConfigError, RewriteError)) as caught:
            function([x], x + 1)
        assert f"optimizer_{how}: no rewrite or tag {word!r}" in str(caught.value)
        assert f"Did you mean {meant!r}?" in str(caught.value)
    if how != "requiring":
        with pytest.raises(ConfigError, match=rf"{word!r}.*{meant!r}"):
            getattr(Mode(), how)("fusion", word)


def test_every_known_word_is_taken_by_flags_and_modes() -> None:
    words = sorted(tags.known_words())
    assert len(words) > len(tags.THEANO) + len(tags.MEANT)
    excluded = Mode().including(*words).excluding(*words).selection.exclude
    assert excluded == {*words} - tags.MEANT.keys()
    x = T.fvector("x")
    with config.change_flags(optimizer_excluding=":".join(sorted(tags.THEANO))):
        assert function([x], x + 1)([1]) == [2]


def test_theano_s_words_are_counted_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "theano.md").read_text()
    assert f" {len(tags.THEANO)} words " in text
    own = {word for r in RULES for word in (r.name, r.phase, *r.tags)}
    assert not own & tags.THEANO
    assert not own & tags.MEANT.keys()
    assert not tags.THEANO & tags.MEANT.keys()
    assert {word for meant in tags.MEANT.values() for word in meant} <= own


@pytest.mark.parametrize("word", sorted(tags.MEANT))
def test_theano_s_words_for_rewrites_of_symdnn_switch_them(word: str) -> None:
    meant = [r for r in RULES if {r.name, *r.tags} & {*tags.MEANT[word]}]
    assert meant
    left = Mode().excluding(word).selection
    with config.change_flags(optimizer_excluding=word):
        by_flag = Mode().selection
    assert not [r.name for r in meant if left.takes(r) or by_flag.takes(r)]
    back = Mode().excluding(word).including(word).selection
    assert all(back.takes(r) for r in meant)


def test_nodes_stay_apart_without_theano_s_fusion() -> None:
    x = T.fvector("x")
    for mode, count in ((Mode(), 1), (Mode().excluding("local_elemwise_fusion", "inplace"), 2)):
        assert len(function([x], T.exp(x) * x, mode=mode).fgraph.nodes) == count
