"""Batch normalisation under Theano's module path ``T.nnet.bn``."""

from symdnn.ops.nn.normalization import (
    batch_normalization,
    batch_normalization_test,
    batch_normalization_train,
)

__all__ = ["batch_normalization", "batch_normalization_test", "batch_normalization_train"]
