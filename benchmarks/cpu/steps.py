"""Training steps on the CPU, symdnn beside PyTorch, in turn in one run: medians in milliseconds.

    python -m benchmarks.cpu.steps [--torch PYTHON] [--rounds 7] [lenet mlp lstm gru]

PyTorch may live in another environment: ``--torch`` names its Python (default: this one). Each side
is a process of its own that runs a step when it is told to, so that their thread pools never meet;
they take turns, a block of steps each, and the machine's moods fall on both alike.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Step = Callable[[], Any]
BATCH = {"lenet": 64, "mlp": 128}
TIME, RNN_BATCH, INPUTS, HIDDEN = 50, 32, 128, 256
CASES = ("lenet", "mlp", "lstm", "gru")
_RATE, _MOMENTUM = 1e-3, 0.9


def _data(case: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH[case], 1, 28, 28) if case == "lenet" else (BATCH[case], 784)
    return rng.normal(size=shape).astype("f"), rng.integers(0, 10, BATCH[case])


# -- symdnn ----------------------------------------------------------------------------------------


def symdnn_step(case: str) -> Step:
    """One training step, or a recurrent net's forward and backward pass."""
    return _symdnn_rnn(case) if case in ("lstm", "gru") else _symdnn_net(case)


def _symdnn_net(case: str) -> Step:
    import symdnn
    import symdnn.tensor as T

    rng = np.random.default_rng(0)
    x, t = (T.ftensor4("x") if case == "lenet" else T.fmatrix("x")), T.ivector("t")
    parameters: list[Any] = []

    def parameter(*shape: int) -> Any:
        scale = 0.1 if len(shape) == 4 else 0.03
        value = rng.normal(size=shape) * (scale if len(shape) > 1 else 0)
        parameters.append(symdnn.shared(value.astype("f")))
        return parameters[-1]

    h: Any = x
    if case == "lenet":
        for inputs, outputs in ((1, 20), (20, 50)):
            h = T.nnet.conv2d(h, parameter(outputs, inputs, 5, 5), filter_flip=False)
            h = h + parameter(outputs).dimshuffle("x", 0, "x", "x")
            h = T.tanh(T.signal.pool.pool_2d(h, (2, 2), ignore_border=True))
        h = T.tanh(T.dot(h.flatten(2), parameter(800, 500)) + parameter(500))
        h = T.dot(h, parameter(500, 10)) + parameter(10)
    else:
        for inputs, outputs in ((784, 512), (512, 512)):
            h = T.nnet.relu(T.dot(h, parameter(inputs, outputs)) + parameter(outputs))
        h = T.dot(h, parameter(512, 10)) + parameter(10)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(h), t).mean()
    updates = []
    for p, g in zip(parameters, T.grad(loss, parameters), strict=True):
        v = symdnn.shared(np.zeros_like(p.get_value()))
        new = _MOMENTUM * v - np.float32(_RATE) * g
        updates += [(v, new), (p, p + new)]
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function([x, t], loss, updates=updates, mode=mode)
    images, labels = _data(case)
    labels = labels.astype("i4")
    return lambda: f(images, labels)


def _symdnn_rnn(case: str) -> Step:
    import symdnn
    import symdnn.tensor as T
    from symdnn.gpu.dnn import RNNBlock

    rng = np.random.default_rng(0)
    block = RNNBlock("float32", HIDDEN, 1, case)
    w = symdnn.shared((rng.normal(size=block.get_param_size(INPUTS)) * 0.05).astype("f"))
    x = T.ftensor3("x")
    states = [np.zeros((1, RNN_BATCH, HIDDEN), "f")] * (1 + (case == "lstm"))
    loss = block.apply(w, x, *states)[0].sum()
    f = symdnn.function([x], T.grad(loss, [w, x]), mode=symdnn.Mode(target="cpu"))
    value = rng.normal(size=(TIME, RNN_BATCH, INPUTS)).astype("f")
    return lambda: f(value)


# -- PyTorch ---------------------------------------------------------------------------------------


def torch_step(case: str) -> Step:
    """The same in PyTorch, eager."""
    import torch

    torch.manual_seed(0)
    return _torch_rnn(torch, case) if case in ("lstm", "gru") else _torch_net(torch, case)


def _torch_net(torch: Any, case: str) -> Step:
    nn = torch.nn
    if case == "lenet":
        model = nn.Sequential(
            nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
            nn.Tanh(), nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10),
        )  # fmt: skip
    else:
        model = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    images, labels = (torch.from_numpy(a) for a in _data(case))
    optimiser = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM)

    def step() -> float:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def _torch_rnn(torch: Any, case: str) -> Step:
    net = (torch.nn.LSTM if case == "lstm" else torch.nn.GRU)(INPUTS, HIDDEN)
    x = torch.randn(TIME, RNN_BATCH, INPUTS, requires_grad=True)

    def step() -> None:
        net.zero_grad()
        x.grad = None
        net(x)[0].sum().backward()

    return step


# -- turns -----------------------------------------------------------------------------------------


def serve(case: str, side: str) -> None:
    """Run blocks of steps: a line with a count in, a line with the times in ms out."""
    step = symdnn_step(case) if side == "symdnn" else torch_step(case)
    for _ in range(5):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e3)
        print(*times, flush=True)


class Side:
    """A process that runs one side's steps."""

    def __init__(self, python: str, case: str, side: str) -> None:
        file = str(Path(__file__).resolve())
        command = [python, file, "--serve", case, side]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.times: list[float] = []
        if self._read() != "ready":
            raise RuntimeError(f"{' '.join(command)} did not start")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, count: int) -> None:
        """A block of steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self.times += map(float, self._read().split())

    def end(self) -> None:
        """Let the process go."""
        self._process.communicate()


def compare(case: str, torch_python: str, rounds: int, count: int = 20) -> tuple[Side, Side]:
    """Both sides, after ``rounds`` turns of ``count`` steps each."""
    ours, theirs = Side(sys.executable, case, "symdnn"), Side(torch_python, case, "torch")
    for _ in range(rounds):
        for side in (ours, theirs):
            side.run(count)
    for side in (ours, theirs):
        side.end()
    return ours, theirs


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--torch", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    print(f"{'step':8}{'symdnn':>9}{'PyTorch':>9}{'ratio':>7}   best of all: ms, ms, ratio")
    for case in given.cases:
        ours, theirs = compare(case, given.torch, given.rounds)
        a, b = statistics.median(ours.times), statistics.median(theirs.times)
        c, d = min(ours.times), min(theirs.times)
        print(f"{case:8}{a:9.2f}{b:9.2f}{a / b:7.2f}   {c:.2f} {d:.2f} {c / d:.2f}", flush=True)


if __name__ == "__main__":
    main()
