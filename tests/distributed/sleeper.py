"""A program of several processes that waits to be interrupted."""

import time

import symdnn.distributed as dist

dist.init()
print("UP", flush=True)
time.sleep(99)
