"""What ``fit`` does where several processes train together: parts of batches, sums, agreement.

All ranks go through the same batches in the same order; of each batch a rank takes its part, the
samples that ``numpy.array_split`` gives it. So a run on any number of ranks sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from symdnn.distributed.gradients import broadcast_values
from symdnn.distributed.streams import random_by_rank
from symdnn.errors import InputError
from symdnn.graph.variable import Shared
from symdnn.nn.training.steps import as_list
from symdnn.world import process
from symdnn.world.group import Group


class Ranks:
    """The ranks of ``group`` that train together, one of which this process is."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.index = group.index(process.current().place.rank, "fit: distributed")

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and shows the bar."""
        return self.index == 0

    def part(self, arrays: list[Any]) -> tuple[list[Any], int]:
        """This rank's samples of a batch, and their number.

        A rank without samples gets one, since networks need one, and the number 0.
        """
        total = int(arrays[0].shape[0])
        each, more = divmod(total, self.group.size)
        start = self.index * each + min(self.index, more)
        count = each + (self.index < more)
        chosen = slice(start, start + count) if count else slice(0, 1)
        return [a[chosen] for a in arrays], count

    def source(self, data: Any, epoch: int, start: int) -> Iterator[Any]:
        """This rank's parts of the batches of an epoch from number ``start`` on."""
        at = getattr(data, "at", None)
        batches = islice(iter(data), start, None) if at is None else at(epoch, start)
        for batch in batches:
            arrays, count = self.part(as_list(batch))
            yield [*arrays, np.float64(count)]

    def begin(self, variables: Mapping[str, Mapping[str, Shared]], data: object) -> None:
        """Give all ranks the first one's values, and its seed of the order of the data; random
        streams have the rank's own numbers."""
        if hasattr(data, "state_dict") and hasattr(data, "load_state_dict"):
            data.load_state_dict(self.agreed("the order of the data", data.state_dict())[0])
        broadcast_values([v for named in variables.values() for v in named.values()], self.group)
        random_by_rank(variables["random"].values(), self.group)

    def merged(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Sums of losses and metrics over the ranks."""
        mine = {n: np.asarray(s, "float64").tolist() for n, s in states.items()}
        every = process.current().gather("fit: measures", mine, self.group)
        return {
            n: np.sum([np.asarray(s[n], "float64") for s in every], axis=0).tolist() for n in states
        }

    def agreed(self, what: str, value: object) -> list[Any]:
        """The values of all ranks."""
        return process.current().gather(f"fit: {what}", value, self.group)

    def random_states(self, states: Mapping[str, Shared]) -> list[dict[str, list[int]]]:
        """The random states of all ranks."""
        mine = {n: np.asarray(v.get_value()).ravel().tolist() for n, v in states.items()}
        return self.agreed("random states", mine)

    def set_random(self, kept: Any, states: Mapping[str, Shared]) -> None:
        """Go on with the states of a checkpoint: this rank's, or for another number of ranks those
        that follow from the first one's, which ``states`` have."""
        if kept is None or len(kept) != self.group.size:
            random_by_rank(states.values(), self.group)
            return
        for n, v in states.items():
            old = np.asarray(v.get_value())
            v.set_value(np.asarray(kept[self.index][n], old.dtype).reshape(old.shape))

    def check_checkpoint(self, there: bool) -> bool:
        """Whether to resume; raises ``InputError`` if some ranks see no checkpoint."""
        seen = self.agreed("the checkpoint", there)
        if len(set(seen)) > 1:
            raise InputError(
                f"fit: the checkpoint is there for some ranks alone ({seen}); it must be in a "
                "folder that all machines see"
            )
        return there
