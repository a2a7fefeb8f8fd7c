"""Rewrites of your own: they take part in compiling like symdnn's, by phase, name and tags."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from symdnn.errors import RewriteError
from symdnn.graph.pattern import any_of, const, p, pattern_vars
from symdnn.libraries.words import known_words
from symdnn.opt.phases import PHASES
from symdnn.rewriting import registry
from symdnn.rewriting.rewrite import (
    Context,
    GraphRewrite,
    Rewrite,
    graph_rewrite,
    node_rewrite,
    rewrite,
)

__all__ = [
    "PHASES", "Context", "GraphRewrite", "Rewrite", "any_of", "const", "graph_rewrite",
    "node_rewrite", "p", "pattern_vars", "register", "registered", "rewrite", "unregister", "using",
]  # fmt: skip

_R = TypeVar("_R", bound=Rewrite[Any] | GraphRewrite)


def register(rule: _R, *, phase: str | None = None, tags: Iterable[str] = ()) -> _R:
    """Let ``rule`` take part in every compilation from now on, and return it: a decorator too.

    ``rule`` is made by :func:`rewrite` (pattern and result), :func:`node_rewrite` (a function of a
    node) or :func:`graph_rewrite` (of a graph). ``phase``, one of :data:`PHASES`, replaces its own;
    ``tags`` are added to its own. Its name and its tags are words for ``Mode.including`` and
    ``excluding`` and the flags ``optimizer_*``. Functions that are compiled already stay as they
    are.

    Raises :class:`~symdnn.errors.RewriteError` for what is no rewrite, for an unknown phase, and
    for a name that is already a rewrite, a tag or a phase.
    """
    if not isinstance(rule, Rewrite | GraphRewrite):
        raise RewriteError(
            "register: wanted a rewrite made by rewrite, node_rewrite or graph_rewrite, got "
            f"{rule!r}"
        )
    given = replace(rule, phase=phase or rule.phase, tags=rule.tags | frozenset(tags))
    if given.phase not in PHASES:
        raise RewriteError(
            f"register: {given.name} has phase {given.phase!r}; wanted one of {', '.join(PHASES)}"
        )
    if given.name in known_words() or not registry.add(given):
        raise RewriteError(
            f"register: {given.name!r} is already the name of a rewrite, a tag or a phase; "
            "choose another name, or unregister the first"
        )
    return given


def unregister(rule: Rewrite[Any] | GraphRewrite | str) -> None:
    """Take a registered rewrite out, by itself or by its name.

    Raises :class:`~symdnn.errors.RewriteError` if it is not registered. symdnn's own rewrites are
    switched off by ``Mode.excluding``.
    """
    name = rule if isinstance(rule, str) else rule.name
    if not registry.remove(name):
        raise RewriteError(
            f"unregister: {name!r} is not registered; registered are "
            f"{', '.join(r.name for r in registered()) or 'none'}"
        )


def registered() -> tuple[Rewrite[Any] | GraphRewrite, ...]:
    """The rewrites that are registered now, in order of registration."""
    return registry.outside()


@contextlib.contextmanager
def using(*rules: Rewrite[Any] | GraphRewrite) -> Iterator[None]:
    """Rewrites that are registered inside of a ``with`` block alone.

    Raises as :func:`register` does.
    """
    with contextlib.ExitStack() as stack:
        for rule in rules:
            made = register(rule)
            stack.callback(registry.remove, made.name)
        yield
