"""Every phase and every rewrite, in order. Deleting a line here removes the behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.opt import shape_rules
from symdnn.opt.rewrite import GraphRewrite, Rewrite

__all__ = ["PHASES", "RULES", "Selection", "rules_of_phase"]

#: Each phase runs to a fixed point before the next one starts.
PHASES = ("canonicalize", "stabilize", "lower", "precision", "layout", "fuse")

#: All rewrites. The order of this list carries no meaning; the phase of a rule does.
RULES: tuple[Rewrite | GraphRewrite, ...] = (
    *shape_rules.RULES,
)


@dataclass(frozen=True)
class Selection:
    """Which rewrites run, by tag or name (Theano's ``including`` and ``excluding``).

    A rule runs when its tags meet ``include`` (or its name is there), and neither its name nor a
    tag is in ``exclude``. ``require`` must be included or compiling fails.
    """

    include: frozenset[str] = frozenset({"fast_run"})
    exclude: frozenset[str] = frozenset()
    require: frozenset[str] = frozenset()

    def takes(self, rule: Rewrite | GraphRewrite) -> bool:
        """Whether ``rule`` runs."""
        names = rule.tags | {rule.name, rule.phase}
        if names & self.exclude:
            return False
        wanted = names | ({"fast_run"} if "optional" not in rule.tags else set())
        return bool(wanted & (self.include | self.require))

    def including(self, *tags: str) -> Selection:
        """Also with these tags or names."""
        given = frozenset(tags)
        return Selection(self.include | given, self.exclude - given, self.require)

    def excluding(self, *tags: str) -> Selection:
        """Without these tags or names."""
        return Selection(self.include, self.exclude | frozenset(tags), self.require)

    def requiring(self, *tags: str) -> Selection:
        """With these, which must exist."""
        return Selection(self.include, self.exclude, self.require | frozenset(tags))


def rules_of_phase(phase: str, selection: Selection) -> Sequence[Rewrite | GraphRewrite]:
    """The rewrites of ``phase`` that ``selection`` takes."""
    return [r for r in RULES if r.phase == phase and selection.takes(r)]
