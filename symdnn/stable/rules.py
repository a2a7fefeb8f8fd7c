"""All rules for stable forms. Gradients use them, and the phase ``stabilize`` of ``opt``."""

from __future__ import annotations

from symdnn.rewriting.rewrite import Rewrite
from symdnn.stable import activations, attention, forms, general, matrices, softmax

RULES: tuple[Rewrite, ...] = (
    *forms.RULES, *softmax.RULES, *general.RULES, *activations.RULES, *attention.RULES,
    *matrices.RULES,
)  # fmt: skip
