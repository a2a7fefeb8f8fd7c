from __future__ import annotations

from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from tests.op_table.record import OpCase, normal

CASES = [
    OpCase("gpu_from_host", (GpuFromHost,), GpuFromHost(), (normal(2, 3),), lambda x: x),
    OpCase("host_from_gpu", (HostFromGpu,), HostFromGpu(), (normal(2, 3),), lambda x: x),
]
