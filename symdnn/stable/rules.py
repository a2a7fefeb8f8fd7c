"""All rules that bring expressions into stable form; ``opt`` runs the same."""

from __future__ import annotations

from symdnn.rewriting.rewrite import Rewrite
from symdnn.stable import forms, general, softmax

__all__ = ["RULES"]

RULES: tuple[Rewrite, ...] = (*forms.RULES, *softmax.RULES, *general.RULES)
