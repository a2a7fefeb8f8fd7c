"""Need 8: processes share the compile cache without locks, and a killed one harms nobody."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, time
import numpy as np, symdnn, symdnn.tensor as T
seed = int(sys.argv[1])
x = T.matrix("x")
out = []
for k in (0, seed):  # one graph that all compile, and one of few
    f = symdnn.function([x], T.tanh(x * (k + 2)).sum(axis=1) + T.exp(-T.sqr(x)).max(axis=1))
    a = np.linspace(-1, 1, 600, dtype="float32").reshape(20, 30)
    want = np.tanh(a * (k + 2)).sum(1) + np.exp(-np.square(a)).max(1)
    np.testing.assert_allclose(f(a), want, rtol=1e-5)
print("right")
"""


def processes(folder, count, killed, asleep=0):
    """Start ``count`` at once on one folder, kill some, and give what each of the others said.

    The first ``asleep`` of them sleep from somewhere in their work until all others have ended.
    """
    flags = f"base_compiledir={folder},cpu.compile=always,device=cpu"
    environment = {**os.environ, "SYMDNN_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", PROGRAM, str(n % 5)],
                         env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(count)
    ]  # fmt: skip
    while not list(folder.rglob("*.o")) and any(p.poll() is None for p in running):
        time.sleep(0.005)  # until somebody compiles
    alive = [p for p in running if p.poll() is None]
    victims = random.Random(0).sample(alive, min(killed, len(alive)))
    for process in victims:
        process.send_signal(signal.SIGKILL)
    sleepers = [p for p in alive if p not in victims][:asleep]
    for process in sleepers:
        process.send_signal(signal.SIGSTOP)
    others = [p for p in running if p not in sleepers]
    try:
        ended = [(p, *p.communicate(timeout=500)) for p in others]
    finally:
        for process in sleepers:
            process.send_signal(signal.SIGCONT)
    ended += [(p, *p.communicate(timeout=500)) for p in sleepers]
    return [(out, error) for p, out, error in ended if p not in victims]


@pytest.mark.parametrize(
    ("count", "killed", "asleep"), [(4, 1, 1), pytest.param(64, 8, 8, marks=pytest.mark.slow)]
)
def test_processes_on_one_folder(tmp_path, count, killed, asleep):
    said = processes(tmp_path, count, killed, asleep)
    assert said == [("right\n", "")] * (count - killed)
    held = [p for p in tmp_path.rglob("*") if "lock" in p.name]
    assert not held  # nobody waits for anybody
    ((out, error),) = processes(tmp_path, 1, 0)  # every entry is valid, or a miss
    assert (out, error) == ("right\n", "")
