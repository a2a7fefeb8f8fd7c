"""How fast ranks exchange values: measured once; and the sizes of buckets that follow from it."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from symdnn.compile.execute.targets import resolve_target
from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.config import config
from symdnn.ops.collective.functions import all_reduce
from symdnn.tuning import store
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["DEFAULT_BUCKET_BYTES", "Link", "bucket_bytes", "link_of", "rounds_once"]

#: Without a measurement: PyTorch DDP's ``bucket_cap_mb``.
DEFAULT_BUCKET_BYTES = 25 << 20
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 256 << 20
#: Elements of the float32 arrays that are reduced: few; many by MPI; and many by NCCL, for which
#: fewer would take no longer than few do.
_SMALL, _LARGE, _LARGE_ON_GPUS = 1 << 10, 1 << 20, 1 << 24
#: Reductions, one after another, in the longer of two programs: what both take besides cancels. Of
#: small ones there are so many that they take longer than the call, which hides few of them.
_CHAIN_OF_SMALL, _CHAIN_OF_LARGE = 33, 5
#: Seconds. A smaller latency was not seen: by its record buckets would be tiny for ever.
_LEAST_LATENCY = 3e-6
#: Calls before the clock, calls in a window, windows.
_WARM, _CALLS, _WINDOWS = 3, 5, 5


@dataclass(frozen=True)
class Link:
    """An all-reduce of n bytes takes ``latency + n / bandwidth`` seconds.

    >>> link = Link(latency=40e-6, bandwidth=300e9)
    >>> link.bucket_bytes(102_000_000) >> 20
    33
    """

    latency: float
    bandwidth: float

    def bucket_bytes(self, total_bytes: int) -> int:
        """The size of buckets for this many bytes of gradients.

        Buckets of b bytes cost ``total / b`` latencies, and the last one, which nothing overlaps,
        ``b / bandwidth``. The sum is least for ``sqrt(total * latency * bandwidth)``.
        """
        best = math.sqrt(total_bytes * self.latency * self.bandwidth)
        return min(max(int(best), _LEAST_BYTES), _MOST_BYTES)


_links: WeakKeyDictionary[process.World, dict[Group, Link]] = WeakKeyDictionary()


def bucket_bytes(group: Group, total_bytes: int) -> int:
    """The size of buckets where neither the user nor the flag says it: all ranks call this.

    ``DEFAULT_BUCKET_BYTES`` with ``deterministic=more``, and where no engine joins the ranks.
    """
    link = None if str(config.deterministic) == "more" else link_of(group)
    return DEFAULT_BUCKET_BYTES if link is None else link.bucket_bytes(total_bytes)


def link_of(group: Group) -> Link | None:
    """The measurement of a group, from disk or made now. All its ranks call this and get the result
    of its first rank. None if the ranks are not connected.
    """
    world = process.current()
    if group.size == 1 or world.store is None or (world.engine != "mpi" and not _on_gpus()):
        return None
    known = _links.setdefault(world, {})
    if group not in known:
        known[group] = _agreed(world, group, _measured)
    return known[group]


def _agreed(world: process.World, group: Group, measured: Callable[[Group], Link]) -> Link:
    """The first rank's record, or its measurement, which all ranks make together."""
    key, first = _key(world, group), world.place.rank == group.ranks[0]
    kept = store.recall(key) if first else None
    agreed = world.gather("the link's record", kept, group)[0]
    if agreed is None:
        own = measured(group)
        record = {"latency": own.latency, "bandwidth": own.bandwidth}
        if first:
            record = store.remember(key, record) or record
        agreed = world.gather("the link's measurement", record, group)[0]
    return Link(float(agreed["latency"]), float(agreed["bandwidth"]))


def _key(world: process.World, group: Group) -> dict[str, Any]:
    place = world.place
    return {
        "family": "link", "engine": world.engine, "device": str(config.device),
        "host": socket.gethostname(), "ranks": list(group.ranks), "size": place.size,
        "local_size": place.local_size, "by": "long chains",
    }  # fmt: skip


def _on_gpus() -> bool:
    """Whether NCCL moves the values of this process's programs."""
    device = str(config.device)
    if device == "cpu" or (device == "auto" and resolve_target().kind == "cpu"):
        return False
    from symdnn.gpu.nccl.communicator import problem

    return problem() is None


def rounds_once(group: Group) -> bool:
    """Whether a sum of bfloat16 over the ranks is rounded once: that of two GPUs, and what NCCL
    sums in registered memory, for which it adds in float32. Elsewhere each addition rounds."""
    if not _on_gpus():
        return False
    from symdnn.gpu.nccl.settings import registers

    return group.size == 2 or registers()


def _measured(group: Group) -> Link:
    """By all-reduces of a small and of a large array, inside of a program."""
    count = _LARGE_ON_GPUS if _on_gpus() else _LARGE
    with config.change_flags(_flags()):
        small = max(_seconds(group, _SMALL, _CHAIN_OF_SMALL), _LEAST_LATENCY)
        large = _seconds(group, count, _CHAIN_OF_LARGE)
    return Link(small, 4 * (count - _SMALL) / max(large - small, 1e-6))


def _flags() -> dict[str, Any]:
    """Gradients are made in registered memory; what is reduced here would be copied there. The
    communicator is that of a training."""
    policy = str(config.distributed.cta_policy).replace("zero", "default")
    flags: dict[str, Any] = {"distributed.registered": False, "distributed.cta_policy": policy}
    if _on_gpus():
        from symdnn.gpu.nccl.settings import Settings

        flags["distributed.ctas"] = Settings.of_flags().ctas
    return flags


def _seconds(group: Group, count: int, chain: int) -> float:
    """Seconds that an all-reduce of this many float32 adds to a program.

    The call of a program takes longer than a small reduction on GPUs: of a single one it would be
    all that is seen.
    """
    one, many = (_seconds_of_chain(group, count, length) for length in (1, chain))
    return max(many - one, 0.0) / (chain - 1)


def _seconds_of_chain(group: Group, count: int, length: int) -> float:
    """Seconds of a call with this many reductions in turn; the least of some windows."""
    x = shared(np.zeros(count, "float32"), name="link")
    calls = shared(np.float32(0), name="link.calls")
    total: Any = x
    for _ in range(length):
        total = all_reduce(total, "mean", group)
    news = [(x, total), (calls, calls + np.float32(1))]
    f = function([], [], updates=news, name="distributed: measurement of the link", profile=False)

    def window(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            f()
        calls.get_value()  # on a GPU calls are asynchronous
        return (time.perf_counter() - start) / count

    window(_WARM)
    return min(window(_CALLS) for _ in range(_WINDOWS))
