"""How long collectives take on a fabric: rings and trees with latencies and bandwidths.

The form, and the latencies of a hop, are those by which NCCL chooses an algorithm (``tuning.cc`` of
NCCL 2.28): a fixed time, a time for each hop inside and between machines, and bytes by the slowest
bandwidth on the way. Bandwidths are those of a machine's figures; NVLink's is fitted to the 2 and 4
H200 of :data:`MEASURED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

__all__ = ["FABRICS", "MEASURED", "Fabric", "Measured"]

#: Seconds of a hop on NVLink and between machines, and the fixed time: for LL, LL128 and Simple.
_NVLINK_HOP_S = {"ring": (0.6e-6, 1.9e-6, 3.4e-6), "tree": (0.6e-6, 1.25e-6, 4.0e-6)}
_NETWORK_HOP_S = {"ring": (2.7e-6, 4.0e-6, 14.0e-6), "tree": (5.0e-6, 8.5e-6, 14.0e-6)}
_FIXED_S = {"ring": (6.6e-6, 14.0e-6, 8.4e-6), "tree": (6.8e-6, 14.0e-6, 0.0)}
#: The part of a bandwidth that a protocol reaches: LL sends a flag with each word.
_PROTOCOLS = (0.25, 0.92, 1.0)
#: A tree's part of a ring's bandwidth.
_TREE = 0.92


@dataclass(frozen=True)
class Fabric:
    """``gpus`` in a machine, joined by NVLink of ``nvlink`` bytes a second (as a ring's bus
    bandwidth counts them), and ``network`` bytes a second between machines, of all cards."""

    name: str
    gpus: int
    nvlink: float
    network: float

    def all_reduce(self, nbytes: float, count: int) -> float:
        """Seconds of the fastest algorithm and protocol, for ``count`` GPUs."""
        if count == 1:
            return 0.0
        return min(self._seconds(a, p, nbytes, count) for a in ("ring", "tree") for p in range(3))

    def halves(self, nbytes: float, count: int) -> float:
        """Seconds of a reduce-scatter or an all-gather of ``nbytes`` in all: half of a ring."""
        if count == 1:
            return 0.0
        return min(self._seconds("ring", p, nbytes, count, trips=1) for p in range(3))

    def _seconds(
        self, algorithm: str, protocol: int, nbytes: float, count: int, trips: int = 2
    ) -> float:
        machines = ceil(count / self.gpus)
        inside = min(count, self.gpus)
        bandwidth = self.nvlink if machines == 1 else min(self.nvlink, self.network)
        near, far = (h[algorithm][protocol] for h in (_NVLINK_HOP_S, _NETWORK_HOP_S))
        if algorithm == "ring":
            between = trips * machines if machines > 1 else 0
            hops = trips * (count - 1) - between
            travel = max(hops, 0) * near + between * far
            moved = trips * nbytes * (count - 1) / count / bandwidth
        else:
            travel = trips * ((inside - 1) * near + ceil(log2(machines)) * far)
            moved = trips * nbytes / (_TREE * bandwidth)
        return _FIXED_S[algorithm][protocol] + travel + moved / _PROTOCOLS[protocol]


_NVLINK = 320e9
#: Cards of 400 and of 200 Gb/s for each GPU, one of 100 Gb/s for a machine, at 92 % of their rate.
FABRICS = {
    f.name: f
    for f in (
        Fabric("nvlink+8x400g", 8, _NVLINK, 8 * 0.92 * 50e9),
        Fabric("nvlink+8x200g", 8, _NVLINK, 8 * 0.92 * 25e9),
        Fabric("nvlink+1x100g", 8, _NVLINK, 0.92 * 12.5e9),
    )
}


@dataclass(frozen=True)
class Measured:
    """A point to check the model by: seconds of an all-reduce of ``nbytes``, and its source."""

    gpus: int
    nbytes: float
    seconds: float
    source: str


_OURS = "4 H200 of one host, NCCL 2.28.9, 2026-11-22"
MEASURED = [
    Measured(gpus, megabytes * 1e6, ms / 1e3, _OURS)
    for gpus, megabytes, ms in (
        (2, 16, 0.0784), (2, 64, 0.2476), (2, 102, 0.3756), (2, 256, 0.8615),
        (4, 16, 0.0986), (4, 64, 0.3161), (4, 102, 0.4796), (4, 256, 1.1408),
    )
]  # fmt: skip
#: Bus bandwidths that others give for 8 GB on machines of 8 H100 with 400 Gb/s for each GPU: with
#: NVLink's multicast, which this model leaves out.
_BUS = 400e9
MEASURED.append(
    Measured(16, 8e9, 2 * 8e9 * 15 / 16 / _BUS,
             "saturncloud.io/blog/crusoe-nccl-cluster-validation: 400 to 450 GB/s, with multicast")
)  # fmt: skip
