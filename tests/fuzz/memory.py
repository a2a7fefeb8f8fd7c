"""Memory that does not grow: functions compiled and dropped, calls, shapes that change.

Each is measured in a process of its own, after a first part in which caches fill. The unit is the
resident memory by which one more repetition grows.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fuzz.areas import Area, Context, Failure

START = """
import ctypes, gc, os, sys
import numpy as np, symdnn, symdnn.tensor as T
rng = np.random.default_rng(int(sys.argv[1]))
libc = ctypes.CDLL(None)
def resident():
    gc.collect()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def grown(part, first, then):
    for k in range(first):
        part(k)
    before = resident()
    for k in range(first, first + then):
        part(k)
    print("grown", (resident() - before) / then)
"""
DROPPED = (
    START
    + """
ops = [T.tanh, T.exp, T.sin, T.sqr, T.nnet.sigmoid, T.abs, T.cos]
def part(k):
    x = T.fmatrix()
    y = x
    for i in rng.integers(len(ops), size=int(rng.integers(1, 5))):
        y = ops[i](y) * float(rng.integers(1, 9))
    f = symdnn.function([x], [y, T.grad(y.sum(), x)])
    f(np.ones((5, 7), "float32"))
grown(part, 160, 100)
"""
)
CALLS = (
    START
    + """
x, w = T.fmatrix(), symdnn.shared(np.ones((7, 3), "float32"))
y = T.nnet.softmax(T.dot(T.tanh(x), w))
f = symdnn.function([x], [y, y.sum()], updates=[(w, w * 1.0001)])
a = np.ones((5, 7), "float32")
grown(lambda k: f(a), 2000, 20000)
"""
)
SHAPES = (
    START
    + """
x = T.fmatrix()
h = T.tanh(x * 2) + x.sum(axis=0)
f = symdnn.function([x], [T.nnet.softmax(h), T.dot(h.T, h)])
grown(lambda k: f(np.ones((1 + k % 900, 3 + k % 7), "float32")), 300, 600)
"""
)
SHARED = (
    START
    + """
def part(k):
    w = symdnn.shared(np.ones((300, 300), "float32"))
    f = symdnn.function([], w.sum(), updates=[(w, w * 0.5)])
    f()
    if k % 2:
        f.free()
grown(part, 40, 80)
"""
)
#: What is repeated, and the bytes by which one repetition may grow memory.
PARTS = {
    "functions compiled and dropped": (DROPPED, 10_000),
    "calls of one function": (CALLS, 20),
    "shapes": (SHAPES, 50_000),
    "shared variables and their functions": (SHARED, 20_000),
}


def check(ctx: Context) -> list[Failure]:
    """One part in its own process."""
    rng = ctx.rng
    name = list(PARTS)[ctx.index % len(PARTS)]
    text, bound = PARTS[name]
    seed = int(rng.integers(10_000))
    ctx.count("growths")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, str(seed)], capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        return [ctx.fail(f"{name}: {last}", text)]
    grown = float(done.stdout.split()[-1])
    if grown <= bound:
        return []
    return [ctx.fail(f"{name}: {grown:.0f} bytes each, {bound} are allowed", text)]


AREA = Area("memory", "growths", check, in_tests=2)
