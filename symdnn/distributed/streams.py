"""Random streams of ranks: numbers of their own from one seed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.variable import Shared
from symdnn.ops.collective.functions import group_of
from symdnn.ops.random.rng_philox import philox4x32
from symdnn.options import as_kind, as_list
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["random_by_rank"]

#: The last word of the counter of the block that makes a rank's key.
_RANK_TAG = 0x5EEE


def random_by_rank(states: Iterable[Shared], group: Group | None = None) -> None:
    """Give each rank random numbers of its own: of ``states``, those of streams or of dropout.

    The key of a state becomes that of the rank, which follows from the key and the rank; rank 0
    keeps its own. Without it all ranks draw the same numbers, as what they share needs
    (:func:`symdnn.nn.random_states` lists a network's states). With ``group`` it is the number in
    that group that counts: along the axis of different samples of a mesh, so that ranks that share
    out a network draw the same.

    >>> from symdnn.ops.random.random_stream import RandomStream
    >>> random_by_rank([RandomStream(1).new_state()])
    """
    number = group_of(group).index(process.current().place.rank, "random_by_rank")
    for state in as_list("random_by_rank: states", states, "shared variables"):
        as_kind("random_by_rank", state, Shared, "states, as nn.random_states lists them")
        value = np.array(state.get_value())
        if value.dtype != np.uint64 or value.shape != (2,):
            raise TypeMismatch("random_by_rank", "states (key, counter) of streams", state.type)
        if number:
            words = philox4x32((number & 0xFFFFFFFF, 0, 0, _RANK_TAG), int(value[0]))
            value[0] = np.uint64(int(words[0]) | int(words[1]) << 32)
            state.set_value(value)
