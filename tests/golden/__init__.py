"""Ten small models, and what ``debugprint`` says of each after each phase of rewriting.

``python -m tests.golden`` writes the texts anew; look at ``git diff tests/golden`` then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.modes import get_mode
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan_builder import scan
from symdnn.opt.optimise import optimise
from symdnn.printing import debugprint

FOLDER = Path(__file__).parent

Model = tuple[list[Variable], list[Variable]]


def weights(name: str, *shape: int) -> Variable:
    return symdnn.shared(np.zeros(shape, "float32"), name=name)


def elementwise() -> Model:
    """Algebra that simplifies."""
    x, y = T.fvectors("x", "y")
    return [x, y], [T.exp(x) * 2 * 3 / 6 + 0 * y, T.log(1 + T.exp(x - y)), (x + y) - y]


def logistic_regression() -> Model:
    x, t, w, b = T.fmatrix("x"), T.ivector("t"), weights("w", 5, 3), weights("b", 3)
    loss = -T.log(T.nnet.softmax(T.dot(x, w) + b))[T.arange(t.shape[0]), t].mean()
    return [x, t], [loss, *T.grad(loss, [w, b])]


def mlp() -> Model:
    x, t, w, v = T.fmatrix("x"), T.ivector("t"), weights("w", 5, 4), weights("v", 4, 3)
    hidden = T.tanh(T.dot(x, w))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(hidden, v)), t).mean()
    return [x, t], [loss, *(p - 0.5 * g for p, g in zip((w, v), T.grad(loss, [w, v])))]


def convnet() -> Model:
    x, t, w = T.ftensor4("x"), T.ivector("t"), weights("w", 4, 1, 3, 3)
    h = T.nnet.relu(T.nnet.conv2d(x, w, border_mode="half"))
    h = T.signal.pool.pool_2d(h, (2, 2), ignore_border=True)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(h.flatten(2)), t).mean()
    return [x, t], [loss, T.grad(loss, w)]


def batch_norm() -> Model:
    x, scale, shift = T.fmatrix("x"), weights("scale", 4), weights("shift", 4)
    y, *_ = T.nnet.bn.batch_normalization_train(
        x, scale.dimshuffle("x", 0), shift.dimshuffle("x", 0)
    )
    return [x], [y, *T.grad((y**2).sum(), [scale, shift])]


def autoencoder() -> Model:
    """Tied weights; the cross-entropy of sigmoids."""
    x, w = T.fmatrix("x"), weights("w", 6, 3)
    y = T.nnet.sigmoid(T.dot(T.nnet.sigmoid(T.dot(x, w)), w.T))
    loss = T.nnet.binary_crossentropy(y, x).sum(axis=1).mean()
    return [x], [loss, T.grad(loss, w)]


def minibatch() -> Model:
    """A slice of shared data, whose number changes from call to call."""
    data, i = weights("data", 100, 5), T.lscalar("i")
    batch = data[i * 10 : (i + 1) * 10]
    return [i], [(batch - batch.mean(axis=0)).std(axis=0), batch.shape[0]]


def shapes() -> Model:
    """No computation only to know a shape."""
    x, y = T.fmatrix("x"), T.fmatrix("y")
    z = T.concatenate([T.exp(x), T.dot(x, y)], axis=1)
    return [x, y], [
        z.shape[0] + z.shape[1],
        z.T.reshape((-1, 2)).shape[1],
        T.zeros_like(z)[1:].sum(),
    ]


def lazy() -> Model:
    c, x = T.iscalar("c"), T.fvector("x")
    return [c, x], [symdnn.ifelse(c, T.exp(x).sum(), (x * x).sum()) * 2]


def loop() -> Model:
    x, w = T.fmatrix("x"), weights("w", 4, 4)
    out, _ = scan(
        lambda row, h, w: T.tanh(T.dot(h, w) + row),
        sequences=x,
        outputs_info=T.zeros((4,)),
        non_sequences=w,
    )
    return [x], [out[-1], T.grad(out[-1].sum(), w)]


MODELS = {
    f.__name__: f
    for f in (
        elementwise, logistic_regression, mlp, convnet, batch_norm, autoencoder, minibatch, shapes,
        lazy, loop,
    )
}  # fmt: skip


def text_of(name: str) -> str:
    """The graph as built, then after each phase that changed it."""
    inputs, outputs = MODELS[name]()
    fgraph = FunctionGraph(inputs, outputs)
    printed = [debugprint(fgraph, print_type=True, file="str")]
    parts = [f"=== as built ===\n{printed[0]}"]

    def after_phase(phase: str) -> None:
        text = debugprint(fgraph, print_type=True, file="str")
        if text != printed[-1]:
            parts.append(f"=== {phase} ===\n{text}")
            printed.append(text)

    # What is fused depends on whether the machine can compile.
    selection = get_mode("FAST_RUN").selection.excluding("fusion")
    with symdnn.config.change_flags(floatX="float32"):
        optimise(fgraph, Target("cpu"), selection, all_capabilities(), after_phase=after_phase)
    return "\n".join(p.rstrip("\n") + "\n" for p in parts)


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.txt"
