"""How long compiling takes, and how that grows with depth.

Plain and residual convolutional networks with batch normalisation (forward, gradient, SGD updates
of parameters and running averages) are compiled at several depths; channels are few, for only the
number of nodes matters here. Reported: seconds for each depth, of compiling (`function`) and of
the first call (plans, memory, binding and one run); the exponent of a power law through
them after an empty function's time is subtracted; the deepest network in a fresh process, imports
included; the slowest rewrites; and the numbers of nodes before and after rewriting.

Then long graphs without layers: chains of elementwise ops with their gradient, and unrolled
recurrent networks, forward and with gradient and update, at lengths that double.

    python -m benchmarks.compile_time [--depths 20 50 110 164] [--repeat 3] [--profile 164]
    python -m benchmarks.compile_time --chains [--lengths 200 400 800 1600]

Goals: an exponent below 1.3, 164 layers cold in under 60 s, 3000 chained ops with gradient in
under 10 s, and 1000 unrolled steps, forward, in under 1.5 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

DEPTHS = (20, 50, 110, 164)
KINDS = ("plain", "residual")


@dataclass(frozen=True)
class Timing:
    """Seconds and node counts of one network."""

    kind: str
    depth: int
    build_s: float
    grad_s: float
    function_s: float
    first_call_s: float
    nodes_before: int
    nodes_after: int


def network(kind: str, depth: int, channels: int = 4, classes: int = 5):
    """(inputs, cost, parameters, running averages with their new values) of ``depth`` layers."""
    import numpy as np

    import symdnn
    import symdnn.tensor as T

    rng = np.random.default_rng(0)
    x, labels = T.tensor4("x"), T.ivector("labels")
    parameters, running = [], []

    def parameter(*shape: int):
        value = rng.standard_normal(shape).astype("float32") * 0.1
        parameters.append(symdnn.shared(value, name=f"p{len(parameters)}"))
        return parameters[-1]

    def layer(h, inputs: int):
        h = T.nnet.conv2d(h, parameter(channels, inputs, 3, 3), border_mode="half")
        old = [symdnn.shared(np.ones(channels, "float32")) for _ in range(2)]
        h, _, _, *new = T.nnet.batch_normalization_train(
            h, parameter(channels), parameter(channels), "spatial", 1e-5, 0.1, *old
        )
        running.extend(zip(old, new, strict=True))
        return h

    h = T.nnet.relu(layer(x, 3))
    for _ in range((depth - 2) // 2):
        inner = layer(T.nnet.relu(layer(h, channels)), channels)
        h = T.nnet.relu(h + inner if kind == "residual" else inner)
    scores = T.dot(h.mean(axis=(2, 3)), parameter(channels, classes)) + parameter(classes)
    cost = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels).mean()
    return [x, labels], cost, parameters, running


def measure(kind: str, depth: int):
    """A :class:`Timing`, and the profile of the rewrites."""
    import numpy as np

    import symdnn
    from symdnn.graph.fgraph import FunctionGraph

    start = time.perf_counter()
    inputs, cost, parameters, running = network(kind, depth)
    built = time.perf_counter()
    grads = symdnn.grad(cost, parameters)
    differentiated = time.perf_counter()
    rate = np.float32(0.1)
    updates = [(p, p - rate * g) for p, g in zip(parameters, grads)] + running
    f = symdnn.function(inputs, cost, updates=updates)
    compiled = time.perf_counter()
    f(np.ones((2, 3, 6, 6), "float32"), np.array([0, 1], "int32"))
    called = time.perf_counter()
    before = len(FunctionGraph(inputs, [cost, *(new for _, new in updates)]))
    timing = Timing(
        kind, depth, built - start, differentiated - built, compiled - differentiated,
        called - compiled, before, len(f.stages.fgraph),
    )  # fmt: skip
    return timing, f.stages.rewrites


def chain(length: int):
    """(inputs, outputs, updates) of a chain of elementwise ops and its gradient."""
    import symdnn
    import symdnn.tensor as T

    x = T.vector("x")
    y = x
    for _ in range(length // 3):  # three ops each
        y = T.tanh(y * 1.01 + 0.1)
    return [x], symdnn.grad(y.sum(), x), []


def unrolled(length: int):
    """(inputs, outputs, updates) of a recurrent network of this many steps, with its gradient."""
    import numpy as np

    import symdnn
    import symdnn.tensor as T

    x, w = T.matrix("x"), symdnn.shared(np.eye(8, dtype="float32"))
    h = T.dot(x, w)
    for _ in range(length):
        h = T.tanh(T.dot(h, w) + x)
    return [x], h.sum(), [(w, w - np.float32(0.1) * symdnn.grad(h.sum(), w))]


def unrolled_forward(length: int):
    """(inputs, outputs, updates) of such a network that reads another row at each step."""
    import numpy as np

    import symdnn
    import symdnn.tensor as T

    x, h = T.ftensor3("x"), T.zeros((4, 8), dtype="float32")
    w, u = (symdnn.shared(np.eye(8, dtype="float32")) for _ in range(2))
    for t in range(length):
        h = T.tanh(T.dot(x[t], w) + T.dot(h, u))
    return [x], h, []


LONG = {"elementwise": chain, "RNN forward": unrolled_forward, "unrolled RNN": unrolled}


def report_long(lengths: Sequence[int]) -> None:
    """Processor seconds of long graphs at each length, and the exponents."""
    import symdnn

    for kind, build in LONG.items():
        build_s, function_s = [], []
        for length in (lengths[0], *lengths):  # the first one loads the modules
            start = time.process_time()
            inputs, outputs, updates = build(length)
            built = time.process_time()
            f = symdnn.function(inputs, outputs, updates=updates)
            build_s.append(built - start)
            function_s.append(time.process_time() - built)
            print(
                f"{kind:12} {length:6}: build and grad {build_s[-1]:6.2f} s, "
                f"function {function_s[-1]:6.2f} s, nodes {len(f.stages.fgraph)}"
            )
        for what, seconds in (("build and grad", build_s), ("function", function_s)):
            print(f"{kind:12} exponent of {what}: {exponent(lengths, seconds[1:], 0.0):.2f}")


def empty_function() -> float:
    """Seconds to compile an empty function: the median of a few."""
    import symdnn
    import symdnn.tensor as T

    seconds = []
    for _ in range(7):
        x = T.matrix("x")
        start = time.perf_counter()
        symdnn.function([x], x)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def exponent(depths: Sequence[int], seconds: Sequence[float], nothing: float) -> float:
    """The slope of log(seconds - empty) over log(depth), by least squares."""
    import numpy as np

    net = np.maximum(np.asarray(seconds) - nothing, 1e-9)
    return float(np.polyfit(np.log(depths), np.log(net), 1)[0])


def median_timing(timings: Sequence[Timing]) -> Timing:
    """The one whose compiling took the median time."""
    return sorted(timings, key=lambda t: t.function_s)[len(timings) // 2]


def cold(kind: str, depth: int) -> dict[str, float]:
    """The same in a fresh process; ``total_s`` includes the interpreter and imports."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", kind, str(depth)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return {**found, "total_s": time.perf_counter() - start}


def report(depths: Sequence[int], repeat: int, profiled: int) -> None:
    """Measure everything and print it."""
    measure("plain", 4)  # modules loaded on first use are no part of compiling
    nothing = empty_function()
    print(f"empty function: {nothing * 1e3:.2f} ms")
    for kind in KINDS:
        rows = []
        for depth in depths:
            count = repeat if depth < 100 else 1
            rows.append(median_timing([measure(kind, depth)[0] for _ in range(count)]))
            t = rows[-1]
            print(
                f"{kind:9} {t.depth:4} layers: build {t.build_s:6.2f} s, grad {t.grad_s:6.2f} s, "
                f"function {t.function_s:6.2f} s, first call {t.first_call_s:6.2f} s, "
                f"nodes {t.nodes_before} -> {t.nodes_after}"
            )
        for what in ("grad_s", "function_s", "first_call_s"):
            e = exponent(depths, [getattr(t, what) for t in rows], nothing)
            print(f"{kind:9} exponent of {what[:-2]}: {e:.2f}")
        c = cold(kind, max(depths))
        print(
            f"{kind:9} {max(depths)} layers cold: {c['total_s']:.1f} s "
            f"(function {c['function_s']:.1f} s)"
        )
    print(f"\nslowest rewrites of {profiled} residual layers")
    print(measure("residual", profiled)[1])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="compile time by depth")
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", type=int, default=50)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "DEPTH"), help=argparse.SUPPRESS)
    parser.add_argument("--chains", action="store_true", help="long graphs without layers only")
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 400, 800, 1600])
    args = parser.parse_args()
    if args.chains:
        report_long(args.lengths)
        return
    if args.one:
        print(json.dumps(asdict(measure(args.one[0], int(args.one[1]))[0])))
        return
    report(args.depths, args.repeat, args.profile)
    report_long(args.lengths)


if __name__ == "__main__":
    main()
