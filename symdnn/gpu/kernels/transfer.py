"""Transfers as kernels of the table; the plan itself enqueues their copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.vendor.transfer import GpuFromHost, HostFromGpu

__all__ = ["TransferKernel", "register"]


@dataclass(frozen=True)
class TransferKernel:
    """A copy through pinned memory; see :class:`symdnn.gpu.execution.runtime.CudaPlan`."""

    name: str

    def refuses(self, call: Call) -> str | None:
        """Takes every tensor."""
        return None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Any:
        """Never called: the plan knows where host values are, a launch does not."""
        raise AssertionError(f"{self.name} is enqueued by the plan")


def register() -> None:
    """Enter the kernels into the table."""
    register_kernel(GpuFromHost, "cuda", TransferKernel("cuda.copy_in"))
    register_kernel(HostFromGpu, "cuda", TransferKernel("cuda.copy_out"))
