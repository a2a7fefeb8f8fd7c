"""Transfers as kernels of the table; the plan itself enqueues their copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu


@dataclass(frozen=True)
class TransferKernel(Kernel):
    """A copy through pinned memory; see :class:`symdnn.gpu.execution.plan.CudaPlan`."""

    name: str
    traits = Traits("cuda")

    def bind(self, call: Call) -> Any:
        """Never called: only the plan knows the addresses of host values."""
        raise AssertionError(f"{self.name} is enqueued by the plan")


KERNELS: tuple[Row, ...] = (
    ((GpuFromHost,), (TransferKernel("cuda.copy_in"),)),
    ((HostFromGpu,), (TransferKernel("cuda.copy_out"),)),
)
