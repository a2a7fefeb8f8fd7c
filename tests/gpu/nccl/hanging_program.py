"""Two processes whose GPUs hang in a collective, by fakes of NCCL and of the device.

Rank 1 dies or hangs, and has started a process of its own. What rank 0 waits for never comes:
``ncclCommAbort`` does not return, as where a captured graph has kernels of NCCL; and in one case
neither does the driver.
"""

import contextlib
import os
import subprocess
import sys
import time

import symdnn.distributed as dist
from symdnn.config import config
from symdnn.gpu.nccl import communicator as nccl
from symdnn.world import process
from tests.gpu.nccl.fake_nccl import FakeNccl


class HangingNccl(FakeNccl):
    """It aborts what runs, and does not return."""

    def comm_abort(self, comm):
        device.aborted = True
        time.sleep(1000)

    def comm_init_rank_scalable(self, *given):
        if fault == "init" and dist.rank() == 0:
            time.sleep(1000)
        return super().comm_init_rank_scalable(*given)


class Device:
    """A GPU on which a kernel waits for ever, or until it is aborted."""

    poll, aborted = None, False

    def current(self):
        return contextlib.nullcontext()

    def cancel(self, end):
        end()
        while not self.aborted:
            time.sleep(0.01)

    def done(self):
        if fault == "driver":
            time.sleep(1000)
        return self.aborted

    def synchronize(self):
        calls = iter([False])
        self.poll(lambda: next(calls, None) is None and self.done())


fault = sys.argv[1]
dist.init()
dist.barrier()  # to start may take longer than the limit
config.distributed.timeout = float(sys.argv[2])
device, binding = Device(), HangingNccl(2)
nccl._binding, nccl.existing_context = lambda: binding, lambda: device
nccl.communicator(process.current().group)
nccl.note("AllReduce(op=mean) of world(2)")
if dist.rank() == 1:
    if fault == "dies":
        os._exit(9)
    with subprocess.Popen(["sleep", "1000"]):  # it has the pipes of standard output
        time.sleep(1000)
if fault == "exit":
    sys.exit()  # with work on its way
try:
    device.synchronize()
except Exception as error:
    print(f"RANK 0 {type(error).__name__}: {error}", flush=True)
    raise
