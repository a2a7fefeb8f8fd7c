"""The words that choose rewrites: names of rules, phases and tags, and Theano's names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from symdnn.errors import ConfigError, RewriteError
from symdnn.flag_types import nearest
from symdnn.libraries.theano_words import MEANT, THEANO
from symdnn.opt.phases import PHASES, Selection
from symdnn.rewriting.registry import outside
from symdnn.rewriting.rewrite import GraphRewrite, Rewrite

__all__ = ["LEVELS", "THEANO", "check_required", "known_words", "meant_words"]

#: Tags for levels of optimisation.
LEVELS = frozenset({"fast_run", "fast_compile", "unsafe", "always", "optional"})


def known_words() -> frozenset[str]:
    """Every word that a flag or a mode may name; those of registered rewrites too."""
    return _words_of_own_rules() | _words_of(outside())


@cache
def _words_of_own_rules() -> frozenset[str]:
    from symdnn.libraries.table import ALL_RULES

    return _words_of(ALL_RULES) | {*PHASES, *LEVELS, *MEANT, *THEANO}


def _words_of(rules: Iterable[Rewrite | GraphRewrite]) -> frozenset[str]:
    return frozenset(word for r in rules for word in (r.name, r.phase, *r.tags))


def _nearest(word: str) -> str:
    """Advice: the known word that looks most like ``word``; empty where none does."""
    found = nearest(word, sorted(known_words()))
    return f" Did you mean {found!r}?" if found else ""


def meant_words(words: Iterable[str], where: str) -> tuple[str, ...]:
    """symdnn's words for ``words``, in which Theano's names of symdnn's rewrites are replaced.

    Raises :class:`~symdnn.errors.ConfigError` for a word that names no rewrite, phase or tag.

    >>> meant_words(["cudnn", "local_elemwise_fusion"], "Mode.excluding")
    ('cudnn', 'fusion')
    >>> meant_words(["fuson"], "Mode.excluding")
    Traceback (most recent call last):
    symdnn.errors.ConfigError: Mode.excluding: no rewrite or tag 'fuson'. Did you mean 'fusion'?
    """
    known = known_words()
    for word in (words := tuple(words)):
        if word not in known:
            raise ConfigError(f"{where}: no rewrite or tag {word!r}.{_nearest(word)}")
    return tuple(own for word in words for own in MEANT.get(word, (word,)))


def check_required(selection: Selection) -> None:
    """Raise :class:`~symdnn.errors.RewriteError` for a required word that names no rewrite."""
    from symdnn.libraries.table import ALL_RULES

    for word in sorted(selection.require):
        if word not in _words_of((*ALL_RULES, *outside())):
            raise RewriteError(f"optimizer_requiring: no rewrite or tag {word!r}.{_nearest(word)}")
