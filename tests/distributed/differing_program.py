"""Collectives that both ranks have had before, called with other sizes by one of them."""

import sys

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn.errors import CollectiveMismatch

dist.init()
MOVES = {
    "reduce": dist.reduce,
    "reduce_scatter": dist.reduce_scatter,
    "all_gather": dist.all_gather,
    "broadcast": dist.broadcast,
    "all_to_all": dist.all_to_all,
    "permute": lambda x: dist.permute(x, [(0, 1), (1, 0)]),
}
x = T.matrix("x")
f = symdnn.function([x], MOVES[sys.argv[1]](x))
rows = 4, 8
for count in (*rows, *rows):
    f(np.ones((count, int(sys.argv[2])), "float32"))
try:
    f(np.ones((rows[dist.rank()], int(sys.argv[2])), "float32"))
except CollectiveMismatch as error:
    print(f"RANK {dist.rank()} {error}", flush=True)
    raise
