"""A program of several processes that waits to be interrupted."""

import os
import time

import symdnn.distributed as dist

dist.init()
os.write(1, b"UP\n")  # at once: an unbuffered print writes the end of the line apart
time.sleep(99)
