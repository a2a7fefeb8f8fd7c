"""Pooling: ``T.signal.pool.pool_2d`` and its kin."""

from symdnn.ops.nn.pool import *

__all__ = [
    "AveragePoolGrad", "MaxPoolGrad", "MaxPoolGradGrad", "Pool", "PoolGrad",
    "max_pool_2d_same_size", "pool_1d", "pool_2d", "pool_3d",
]  # fmt: skip
