"""Scaling and adding by the convolution itself; and a training step as a golden text."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program import capabilities
from symdnn.gpu import dnn
from symdnn.graph.variable import Variable
from symdnn.ops.lowered.transfer import Transfer
from symdnn.ops.nn import conv_builders as B
from symdnn.ops.vendor.gpudnn import DnnBase, DnnConvolution
from tests.opt.lowering import ALL, GPU, assert_same_values, names, op_of, rewritten, variables

RNG = np.random.default_rng(17)
X, W = RNG.standard_normal((2, 3, 6, 5)), RNG.standard_normal((4, 3, 3, 2))
DY = RNG.standard_normal((2, 4, 4, 4))


@pytest.fixture(autouse=True)
def without_transfers(monkeypatch):
    """Nothing has a kernel on the device, so nothing moves there."""
    monkeypatch.setattr(capabilities, "kernels_for", lambda op_type, kind: [])


#: Theano's word in the rewrites' names, the op, and the convolution in that direction with an
#: operand of its shape.
DIRECTIONS = {
    "conv": ("GpuDnnConv", (X, W, DY), lambda x, w, out: B.conv2d(x, w)),
    "convw": ("GpuDnnConvGradW", (X, DY, W), lambda x, dy, out: B.conv2d_grad_wrt_weights(
        x, dy, out.shape)),
    "convi": ("GpuDnnConvGradI", (W, DY, X), lambda w, dy, out: B.conv2d_grad_wrt_inputs(
        dy, w, out.shape)),
}  # fmt: skip
each = pytest.mark.parametrize("word", DIRECTIONS)


def half(y):
    return y * np.asarray(0.5)


MERGES = [
    (lambda y, out: half(y), 0.5, 0.0),
    (lambda y, out: -y, -1.0, 0.0),
    (lambda y, out: y / 4.0, 0.25, 0.0),
    (lambda y, out: half(-y), -0.5, 0.0),
    (lambda y, out: y + out, 1.0, 1.0),
    (lambda y, out: y - out, 1.0, -1.0),
    (lambda y, out: out - y, -1.0, 1.0),
    (lambda y, out: out - half(y), -0.5, 1.0),
    (lambda y, out: half(y + out), 0.5, 0.5),
]


@pytest.mark.parametrize(("change", "alpha", "beta"), MERGES)
@each
def test_merged(word, change, alpha, beta):
    name, arrays, build = DIRECTIONS[word]
    vs = variables(arrays)
    outputs = [change(build(*vs), vs[2])]
    fgraph = rewritten(vs, outputs)
    op = op_of(fgraph, name)
    assert (op.alpha, op.beta) == (alpha, beta)
    assert len(fgraph) == 1 + len([n for n in fgraph.nodes if "ShapeI" in str(n.op)])
    assert_same_values(fgraph, vs, outputs, arrays)


@each
def test_each_direction_goes_by_its_names(word):
    name, arrays, build = DIRECTIONS[word]
    vs = variables(arrays)
    outputs = [vs[2] - half(build(*vs))]
    no_alpha = rewritten(vs, outputs, selection=ALL.excluding(f"local_dnn_{word}_alpha_merge"))
    assert (op_of(no_alpha, name).alpha, op_of(no_alpha, name).beta) == (1.0, 0.0)
    no_output = rewritten(vs, outputs, selection=ALL.excluding(f"local_dnn_{word}_output_merge"))
    assert op_of(no_output, name).beta == 0.0
    for fgraph in (no_alpha, no_output):
        assert_same_values(fgraph, vs, outputs, arrays)


def plain(fgraph):
    op = op_of(fgraph, "GpuDnnConv")
    return (op.alpha, op.beta) == (1.0, 0.0)


def test_what_others_read_is_not_merged():
    x, w, out = variables((X, W, DY))
    y = B.conv2d(x, w)
    assert plain(rewritten([x, w], [half(y), y]))
    assert plain(rewritten([x, w, out], [y + out, y]))
    assert plain(rewritten([x, w], [y + T.exp(y)]))


def test_what_has_another_shape_or_is_computed_is_not_merged():
    x, w = variables((X, W))
    b, a = T.dvector(), T.dscalar()
    y = B.conv2d(x, w)
    assert plain(rewritten([x, w, b], [y + b.dimshuffle("x", 0, "x", "x")]))
    assert plain(rewritten([x, w, a], [y * a]))
    assert plain(rewritten([x, w], [y * 0.0]))
    wide, one = T.dtensor4(), T.TensorType("float64", (1, None, None, None))()
    assert plain(rewritten([one, w, wide], [B.conv2d(one, w) + wide]))


def test_an_operand_of_another_size_is_refused_when_it_runs():
    x, w, out = variables((X, W, DY))
    fgraph = rewritten([x, w, out], [B.conv2d(x, w) + out])
    values = dict(zip(fgraph.inputs, (X, W, DY[:, :, :3])))
    with pytest.raises(ValueError, match=r"\(2, 4, 3, 4\)"):
        symdnn.graph.evaluate.evaluate(fgraph.outputs, values)
    (node,) = fgraph.nodes
    with pytest.raises(symdnn.errors.ShapeMismatch, match="to add to"):
        node.op.shapes([v.type for v in node.inputs], [X.shape, W.shape, (2, 4, 3, 4)], {})


def test_sums_of_convolutions_are_a_chain():
    x, w, v = variables((X, W, W))
    outputs = [B.conv2d(x, w) + B.conv2d(x, v)]
    fgraph = rewritten([x, w, v], outputs)
    assert names(fgraph) == ["GpuDnnConv", "GpuDnnConv"]
    first, second = (n.op for n in fgraph.toposort())
    assert (first.beta, second.beta) == (0.0, 1.0)
    assert second.inplace
    assert second.may_overwrite == {0: (2,)}
    assert_same_values(fgraph, [x, w, v], outputs, (X, W, W))


def test_inplace_is_read_as_in_theano():
    x, w, out = variables((X, W, DY))
    y = B.conv2d(x, w)
    assert op_of(rewritten([x, w], [y]), "GpuDnnConv").inplace
    assert not op_of(rewritten([x, w, out], [y + out]), "GpuDnnConv").inplace
    assert op_of(rewritten([x, w, out], [y + T.exp(out)]), "GpuDnnConv").inplace
    read = rewritten([x, w, out], [y + T.exp(out), T.exp(out)])
    assert not op_of(read, "GpuDnnConv").inplace
    view = rewritten([x, w, out], [y + out[:, :, ::-1]])
    assert not op_of(view, "GpuDnnConv").inplace
    off = rewritten([x, w], [y], selection=ALL.excluding("inplace"))
    assert not op_of(off, "GpuDnnConv").inplace


def test_the_schedule_overwrites_the_operand_of_an_inplace_convolution():
    x, w, out = variables((X, W, DY))
    y = T.tanh(B.conv2d(x, w) + T.exp(out))
    f = symdnn.function([x, w, out], y, mode=symdnn.Mode(target=GPU).excluding("fuse"))
    sizes = dict(zip(f.fgraph.inputs, (X.shape, W.shape, DY.shape)))
    (plan,) = f.stages.specialise(sizes)
    (node,) = [n for n in f.fgraph.nodes if isinstance(n.op, dnn.GpuDnnConv)]
    assert node.op.inplace
    assert plan.memory.in_place[node] == {0: 2}


# -- a training step of LeNet ---------------------------------------------------------------------


def lenet():
    x, t = T.ftensor4("x"), T.ivector("t")
    shapes = {
        "w1": (20, 1, 5, 5), "b1": (20,), "w2": (50, 20, 5, 5), "b2": (50,), "w3": (800, 500),
        "b3": (500,), "w4": (500, 10), "b4": (10,),
    }  # fmt: skip
    p = {k: symdnn.shared(np.zeros(s, "float32"), k) for k, s in shapes.items()}
    h = x
    for w, b in (("w1", "b1"), ("w2", "b2")):
        h = B.conv2d(h, p[w]) + p[b].dimshuffle("x", 0, "x", "x")
        h = T.tanh(T.signal.pool.pool_2d(h, (2, 2), ignore_border=True))
    h = T.tanh(h.flatten(2).dot(p["w3"]) + p["b3"])
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(h.dot(p["w4"]) + p["b4"]), t).mean()
    updates = [(v, v - 0.1 * T.grad(loss, v)) for v in p.values()]
    return [x, t], loss, updates


def label(v: Variable, known: dict[Variable, str]) -> str:
    """A leaf's name, the line of a cuDNN op, the name of another; sizes are ``n``."""
    while v.owner is not None and isinstance(v.owner.op, Transfer):
        v = v.owner.inputs[0]
    if v.type.ndim == 0 and v.type.is_discrete:
        return "n"
    return str(v.name) if v.owner is None else known.get(v, type(v.owner.op).__name__)


def listing(f) -> str:
    """The cuDNN ops in order, and what becomes of the shared variables."""
    known: dict[Variable, str] = {}
    lines = []
    for node in f.fgraph.toposort():
        if not isinstance(node.op, DnnBase):
            continue
        known.update(dict.fromkeys(node.outputs, f"%{len(lines)}"))
        inputs = ", ".join(label(v, known) for v in node.inputs)
        extra = ""
        if isinstance(node.op, DnnConvolution):
            extra = f" algo={node.op.algo} alpha={node.op.alpha:.3g} beta={node.op.beta:g}"
            extra += " inplace" if node.op.inplace else ""
        lines.append(f"%{len(lines)} = {type(node.op).__name__}({inputs}){extra}")
    outputs = f.fgraph.outputs
    lines += [f"{s} <- {label(outputs[i], known)}" for i, s in f.fgraph.updates.items()]
    return "\n".join(lines)


GOLDEN = """
%0 = GpuDnnConv(x, w1) algo=small alpha=1 beta=0 inplace
%1 = GpuDnnPool(Add)
%2 = GpuDnnConv(Tanh, w2) algo=small alpha=1 beta=0 inplace
%3 = GpuDnnPool(Add)
%4 = GpuDnnReduction(SoftmaxCrossentropy)
%5 = GpuDnnPoolGrad(Add, %3, Mul)
%6 = GpuDnnConvGradI(w2, %5, n, n) algo=none alpha=1 beta=0 inplace
%7 = GpuDnnPoolGrad(Add, %1, Mul)
%8 = GpuDnnConvGradW(x, %7, n, n) algo=none alpha=1 beta=0 inplace
%9 = GpuDnnReduction(%7)
%10 = GpuDnnConvGradW(Tanh, %5, n, n) algo=none alpha=1 beta=0 inplace
%11 = GpuDnnReduction(%5)
%12 = GpuDnnReduction(Mul)
%13 = GpuDnnReduction(SoftmaxCrossentropyGrad)
w1 <- Sub
b1 <- Sub
w2 <- Sub
b2 <- Sub
w3 <- Sub
b3 <- Sub
w4 <- Sub
b4 <- Sub
"""


def test_golden_training_step():
    inputs, loss, updates = lenet()
    mode = symdnn.Mode(target=GPU).excluding("fuse", "epilogue")
    f = symdnn.function(inputs, loss, updates=updates, mode=mode)
    assert listing(f) == GOLDEN.strip()
