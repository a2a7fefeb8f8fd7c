"""Processes that are stopped (SIGINT) or killed (SIGKILL) while they compile, save or train.

Afterwards another process finds what is on disk whole: kernels in the cache give right results,
a file of parameters is the old one or the new one, training goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.areas import Area, Context, Failure

START = "import sys, numpy as np, symdnn, symdnn.tensor as T\nfrom symdnn import nn\n"
COMPILING = (
    START
    + """
from symdnn.config import config
config.cpu.compile = "always"
x = T.fmatrix("x")
a = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
print("ready", flush=True)
for k in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
    y = symdnn.function([x], T.tanh(x * k) + k)(a)
    assert np.allclose(y, np.tanh(a * k) + k, atol=1e-5), (k, y)
print("done", flush=True)
"""
)
SAVING = (
    START
    + """
from symdnn.io import save_parameters
print("ready", flush=True)
for k in range(400):
    values = {"w": np.full((300, 70), k), "k": np.array(k)}
    save_parameters(sys.argv[1] + "/p" + sys.argv[4], values)
print("done", flush=True)
"""
)
SAVED = (
    START
    + """
import pathlib
from symdnn.io import load_parameters, save_parameters
path = pathlib.Path(sys.argv[1] + "/p" + sys.argv[4])
if path.exists():
    found = load_parameters(path)
    assert (found["w"] == found["k"]).all() and found["w"].shape == (300, 70)
save_parameters(path, {"w": np.zeros(1)})
left = sorted(p.name for p in pathlib.Path(sys.argv[1]).iterdir())
assert left == [path.name], left
print("done", flush=True)
"""
)
TRAINING = (
    START
    + """
import pathlib
rng = np.random.default_rng(0)
data = rng.standard_normal((64, 5)).astype("float32")
target = (data[:, :1] * 2 - data[:, 1:2]).astype("float32")
net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
path = pathlib.Path(sys.argv[1]) / "checkpoint.safetensors"
data = nn.batches((data, target), 16)
print("ready", flush=True)
nn.fit(net, nn.MSECriterion(), nn.optim.sgd, data, int(sys.argv[3]), lr=0.05, checkpoint=path,
       resume=path.exists(), progress=False)
assert all(np.isfinite(p.get_value()).all() for p in net.parameters())
print("done", flush=True)
"""
)
#: What is killed, and what must then succeed.
JOBS = {"compiling": (COMPILING, COMPILING), "saving": (SAVING, SAVED),
        "training": (TRAINING, TRAINING)}  # fmt: skip


def start(text: str, folder: Path, first: int, count: int, suffix: str) -> subprocess.Popen[str]:
    """A process that does a job, with its cache in the folder."""
    (folder / "cache").mkdir(mode=0o700, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    arguments = [str(folder / "work"), str(first), str(count), suffix]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text, *arguments], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def check(ctx: Context) -> list[Failure]:
    """One job that is stopped at some moment, and the process after it."""
    rng = ctx.rng
    name = str(rng.choice(list(JOBS)))
    stopped, after = JOBS[name]
    sent = signal.SIGKILL if rng.random() < 0.6 else signal.SIGINT
    suffix = str(rng.choice([".npz", ".safetensors"]))
    wait, first = float(rng.random() ** 2 * 1.5), int(rng.integers(2, 9))
    ctx.count("stops")
    what = f"{name}, {signal.Signals(sent).name} after {wait:.2f} s"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        process = start(stopped, folder, first, 200, suffix)
        said = _stop(process, sent, wait)
        if said:
            return [ctx.fail(f"{what}: {said}", stopped)]
        process = start(after, folder, first, 4 if name == "compiling" else 3, suffix)
        out, err = process.communicate(timeout=300)
        if process.returncode or "done" not in out:
            return [ctx.fail(f"{what}: afterwards {_last(err)} ({process.returncode})", after)]
    return []


def _stop(process: subprocess.Popen[str], sent: int, wait: float) -> str:
    """Send the signal once the job began; what is wrong with how the process ended, or ``""``."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if "ready" not in line:
        return f"did not start: {_last(process.communicate()[1])}"
    time.sleep(wait)
    process.send_signal(sent)
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "goes on two minutes later"
    if "done" in out or sent == signal.SIGKILL:
        return ""
    last = _last(err)
    return "" if "KeyboardInterrupt" in last or process.returncode == -sent else f"ends with {last}"


def _last(err: str) -> str:
    lines = [x for x in err.strip().splitlines() if x.strip()]
    return lines[-1][:200] if lines else "nothing said"


AREA = Area("faults", "stops", check, in_tests=2)
