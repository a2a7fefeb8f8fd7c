"""Training: batches, metrics, checkpoints and the loop :func:`fit`. Nothing else needs it."""

from symdnn.nn.training import metrics
from symdnn.nn.training.batches import Batches, batches
from symdnn.nn.training.fit import fit, measure
from symdnn.nn.training.history import History
from symdnn.nn.training.prefetch import prefetch

__all__ = ["Batches", "History", "batches", "fit", "measure", "metrics", "prefetch"]
