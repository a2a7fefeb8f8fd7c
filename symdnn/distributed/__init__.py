"""Many processes: their places, collectives of symbolic values, data parallel training.

::

    import symdnn.distributed as dist

    dist.init()                                  # started by symdnn launch, mpirun, torchrun, srun
    total = dist.all_reduce(loss)                # symbolic, as any op
    updates = nn.optim.adam(loss, net, distributed=True)

The cost whose gradient is taken is the sum over ranks of each rank's cost. So the gradient through
``all_reduce`` is the sum of all ranks' gradients, and the average of the ranks' gradients of a mean
loss is the gradient of the mean loss of all samples. ``docs/distributed.md`` has the whole.
"""

from symdnn.distributed.gradients import *
from symdnn.distributed.mesh import Mesh
from symdnn.distributed.place import *
from symdnn.distributed.simulation import simulate
from symdnn.distributed.streams import random_by_rank
from symdnn.ops.collective.functions import *
from symdnn.ops.collective.replicated import replicated
from symdnn.world.group import Group

__all__ = [
    "DataParallel", "Group", "Mesh", "all_gather", "all_reduce", "all_to_all", "average_gradients",
    "barrier", "broadcast", "broadcast_values", "data_parallel", "finalize", "init", "is_main",
    "local_rank", "local_size", "new_group", "permute", "random_by_rank", "rank", "recv", "reduce",
    "reduce_scatter", "replicated", "restarts", "send", "simulate", "size",
]  # fmt: skip
