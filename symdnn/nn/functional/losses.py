"""Losses: functions of the output and the target."""

from __future__ import annotations

from typing import Any

from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.nn.functional.of_layers import function_of
from symdnn.nn.losses import torch_losses as losses
from symdnn.nn.losses import torch_losses_margin as margins

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cross_entropy", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip

_TWO = ("input", "target")
_PAIR = ("input1", "input2", "target")

binary_cross_entropy = function_of("binary_cross_entropy", losses.BCELoss, _TWO)
binary_cross_entropy_with_logits = function_of(
    "binary_cross_entropy_with_logits", losses.BCEWithLogitsLoss, _TWO
)
cosine_embedding_loss = function_of("cosine_embedding_loss", margins.CosineEmbeddingLoss, _PAIR)
cross_entropy = function_of("cross_entropy", losses.CrossEntropyLoss, _TWO)
hinge_embedding_loss = function_of("hinge_embedding_loss", margins.HingeEmbeddingLoss, _TWO)
huber_loss = function_of("huber_loss", losses.HuberLoss, _TWO, ("reduction", "delta", "weight"))
kl_div = function_of("kl_div", losses.KLDivLoss, _TWO)
l1_loss = function_of("l1_loss", losses.L1Loss, _TWO)
margin_ranking_loss = function_of("margin_ranking_loss", margins.MarginRankingLoss, _PAIR)
mse_loss = function_of("mse_loss", losses.MSELoss, _TWO)
multi_margin_loss = function_of("multi_margin_loss", margins.MultiMarginLoss, _TWO)
multilabel_margin_loss = function_of("multilabel_margin_loss", margins.MultiLabelMarginLoss, _TWO)
multilabel_soft_margin_loss = function_of(
    "multilabel_soft_margin_loss", margins.MultiLabelSoftMarginLoss, _TWO
)
nll_loss = function_of("nll_loss", losses.NLLLoss, _TWO)
poisson_nll_loss = function_of("poisson_nll_loss", losses.PoissonNLLLoss, _TWO)
smooth_l1_loss = function_of("smooth_l1_loss", losses.SmoothL1Loss, _TWO)
soft_margin_loss = function_of("soft_margin_loss", margins.SoftMarginLoss, _TWO)
triplet_margin_loss = function_of(
    "triplet_margin_loss", margins.TripletMarginLoss, ("anchor", "positive", "negative")
)
triplet_margin_with_distance_loss = function_of(
    "triplet_margin_with_distance_loss", margins.TripletMarginWithDistanceLoss,
    ("anchor", "positive", "negative"),
)  # fmt: skip


@advises()
def gaussian_nll_loss(
    input: TensorLike, target: TensorLike, var: TensorLike, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Variable:  # fmt: skip
    """``nn.GaussianNLLLoss`` as a function; ``var`` may be a number."""
    made: Variable = losses.GaussianNLLLoss(full=full, eps=eps, reduction=reduction)(
        input, target, var
    )
    return made


@advises()
def ctc_loss(
    log_probs: TensorLike, targets: TensorLike, input_lengths: Any, target_lengths: Any,
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Variable:  # fmt: skip
    """``nn.CTCLoss`` as a function."""
    made: Variable = margins.CTCLoss(blank, reduction, zero_infinity)(
        log_probs, targets, input_lengths, target_lengths
    )
    return made
