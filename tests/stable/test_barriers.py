"""Variables that the user differentiates by, or holds fixed, stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T

POINTS = np.array([-200.0, -3.0, 0.5, 30.0])
#: Where the values that a gradient reads are right also as they are written.
EASY = np.array([-3.0, 0.5, 2.0])


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def computed(inputs, outputs, *values, optimizer=None):
    mode = None if optimizer is None else symdnn.Mode(optimizer=optimizer)
    with np.errstate(all="ignore"):
        return symdnn.function(inputs, outputs, mode=mode, on_unused_input="ignore")(*values)


both = pytest.mark.parametrize("optimizer", ["fast_run", "None"])


@both
def test_gradients_by_an_intermediate_and_by_what_made_it(optimizer):
    x = T.dvector("x")
    p = T.nnet.sigmoid(x)
    cost = T.log(p).sum()
    alone = computed([x], T.grad(cost, p), POINTS[1:], optimizer=optimizer)
    np.testing.assert_allclose(alone, 1 / sigmoid(POINTS[1:]), rtol=1e-14)
    to_x, to_p = computed([x], T.grad(cost, [x, p]), POINTS, optimizer=optimizer)
    np.testing.assert_allclose(to_x, sigmoid(-POINTS), rtol=1e-13)
    np.testing.assert_allclose(to_p[1:], 1 / sigmoid(POINTS[1:]), rtol=1e-14)


@both
def test_each_of_a_chain_of_intermediates(optimizer):
    x = T.dvector("x")
    e = T.exp(x)
    s = 1 + e
    q = T.log(s)
    found = computed([x], T.grad(T.sqr(q).sum(), [x, e, s, q]), EASY, optimizer=optimizer)
    e_, s_ = np.exp(EASY), 1 + np.exp(EASY)
    q_ = np.log1p(e_)
    wanted = [2 * q_ * sigmoid(EASY), 2 * q_ / s_, 2 * q_ / s_, 2 * q_]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@both
def test_consider_constant(optimizer):
    x = T.dvector("x")
    p = T.nnet.sigmoid(x)
    cost = (x * T.log(p)).sum()
    found = computed([x], T.grad(cost, x, consider_constant=[p]), EASY, optimizer=optimizer)
    np.testing.assert_allclose(found, -np.logaddexp(0, -EASY), rtol=1e-12)


@both
def test_known_gradients_of_an_intermediate(optimizer):
    x = T.dvector("x")
    p = T.nnet.sigmoid(x)
    given = np.array([1.0, 2.0, 3.0])
    alone = T.grad(None, x, known_grads={p: T.constant(given)})
    points = POINTS[1:]
    slope = sigmoid(points) * sigmoid(-points)
    (found,) = computed([x], [alone], points, optimizer=optimizer)
    np.testing.assert_allclose(found, given * slope, rtol=1e-12)
    (found,) = computed(
        [x], [T.grad(T.log(p).sum(), x, known_grads={p: T.constant(given)})], points,
        optimizer=optimizer,
    )  # fmt: skip
    wanted = given * slope + sigmoid(-points)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


CONTROLS = [
    ("zero_grad", symdnn.gradient.zero_grad, lambda g: 0 * g),
    ("grad_scale", lambda p: symdnn.gradient.grad_scale(p, -2.0), lambda g: -2 * g),
    ("grad_clip", lambda p: symdnn.gradient.grad_clip(p, -1.5, 1.5), None),
]


@both
@pytest.mark.parametrize(
    ("control", "change"), [c[1:] for c in CONTROLS], ids=[c[0] for c in CONTROLS]
)
def test_gradient_controls_are_no_part_of_a_form(control, change, optimizer):
    x = T.dvector("x")
    p = T.nnet.sigmoid(x)
    points = POINTS[1:]
    (found,) = computed([x], [T.grad(T.log(control(p)).sum(), x)], points, optimizer=optimizer)
    s = sigmoid(points)
    if change is None:
        wanted = np.clip(1 / s, -1.5, 1.5) * s * sigmoid(-points)
    else:
        wanted = change(1 / s * s * sigmoid(-points))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-18)


@both
def test_disconnected_gradient(optimizer):
    x = T.dvector("x")
    held = symdnn.gradient.disconnected_grad(T.nnet.sigmoid(x))
    (found,) = computed([x], [T.grad((x * T.log(held)).sum(), x)], EASY, optimizer=optimizer)
    np.testing.assert_allclose(found, -np.logaddexp(0, -EASY), rtol=1e-12)


def test_values_are_printed_once(capsys):
    x = T.dvector("x")
    shown = T.printing.Print("here")(T.log(T.nnet.sigmoid(x))) if hasattr(T, "printing") else None
    shown = symdnn.printing.Print("here")(T.log(T.nnet.sigmoid(x))) if shown is None else shown
    cost = T.sqr(shown).sum()
    _, slope = computed([x], [cost, T.grad(cost, x)], POINTS)
    assert capsys.readouterr().out.count("here") == 1
    np.testing.assert_allclose(slope, 2 * -np.logaddexp(0, -POINTS) * sigmoid(-POINTS), rtol=1e-12)


def test_what_fires_nowhere_is_not_copied():
    x = T.dvector("x")
    h = T.tanh(x * 2)
    g = T.grad(T.sqr(h).sum(), x)
    from symdnn.graph.traverse import ancestors

    assert h in ancestors([g])


def test_hints_names_and_origins_are_kept():
    x = T.dmatrix("x")
    z = T.dot(x, x.T)
    p = T.nnet.softmax(z, axis=1)
    loss = T.log(p)
    g = T.grad(loss[:, 0].sum(), x)
    from symdnn.graph.traverse import toposort
    from symdnn.ops.nn.softmax import LogSoftmax

    (made,) = [n for n in toposort([g]) if isinstance(n.op, LogSoftmax)]
    assert made.origin.lines[0][1] == loss.owner.origin.lines[0][1]
    assert made.inputs[0] is z


def test_test_values_go_along():
    with symdnn.config.change_flags(compute_test_value="raise"):
        x = T.dvector("x")
        x.tag.test_value = POINTS
        g = T.grad(T.log(T.nnet.sigmoid(x)).sum(), x)
        np.testing.assert_allclose(g.tag.test_value, sigmoid(-POINTS), rtol=1e-12)


@both
def test_second_gradients_and_tangents(optimizer):
    x, t = T.dvector("x"), T.dvector("t")
    y = T.log(1 / (1 + T.exp(-x)))
    first = T.grad(y.sum(), x)
    second = T.grad(first.sum(), x)
    tangent = T.Rop(y, x, t)
    got = computed([x, t], [first, second, tangent], POINTS, POINTS, optimizer=optimizer)
    slope = sigmoid(-POINTS)
    wanted = [slope, -slope * sigmoid(POINTS), slope * POINTS]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@both
def test_jacobian_and_hessian(optimizer):
    x = T.dvector("x")
    y = T.log(T.nnet.sigmoid(x))
    rows, bent = symdnn.gradient.jacobian(y, x), symdnn.gradient.hessian(y.sum(), x)
    got = computed([x], [rows, bent], POINTS, optimizer=optimizer)
    np.testing.assert_allclose(got[0], np.diag(sigmoid(-POINTS)), rtol=1e-12)
    np.testing.assert_allclose(got[1], np.diag(-sigmoid(-POINTS) * sigmoid(POINTS)), rtol=1e-12)


@both
def test_inside_of_a_loop(optimizer):
    xs = T.dmatrix("xs")
    losses, _ = symdnn.scan(lambda x, total: total + T.log(1 / (1 + T.exp(-x))).sum(),
                            sequences=xs, outputs_info=[T.constant(np.float64(0))])  # fmt: skip
    values = np.stack([POINTS, POINTS[::-1]])
    cost, slope = computed([xs], [losses[-1], T.grad(losses[-1], xs)], values, optimizer=optimizer)
    np.testing.assert_allclose(slope, sigmoid(-values), rtol=1e-12)
    if optimizer != "None":
        np.testing.assert_allclose(cost, -np.logaddexp(0, -values).sum(), rtol=1e-12)


@both
@pytest.mark.parametrize("inline", [False, True])
def test_inside_of_an_op_from_a_graph(inline, optimizer):
    x = T.dvector("x")
    op = symdnn.OpFromGraph([x], [T.log(1 - T.nnet.sigmoid(x))], inline=inline)
    z = T.dvector("z")
    y = op(z)
    points = EASY if optimizer == "None" else POINTS[:3]
    (slope,) = computed([z], [T.grad(T.sqr(y).sum(), z)], points, optimizer=optimizer)
    wanted = 2 * np.logaddexp(0, points) * sigmoid(points)
    np.testing.assert_allclose(slope, wanted, rtol=1e-12)


def test_the_loop_runs_once():
    """The value of a loop and its gradient are of one loop, whatever is stabilised inside."""
    xs = T.dmatrix("xs")
    losses, _ = symdnn.scan(lambda x: T.log(1 / (1 + T.exp(-x))).sum(), sequences=xs)
    cost = T.sqr(losses).sum()
    f = symdnn.function([xs], [cost, T.grad(cost, xs)])
    plain, _ = symdnn.scan(lambda x: T.nnet.log_sigmoid(x).sum(), sequences=xs)
    other = T.sqr(plain).sum()
    g = symdnn.function([xs], [other, T.grad(other, xs)])
    assert len(f.fgraph.toposort()) == len(g.fgraph.toposort())


@pytest.mark.parametrize(
    "build",
    [
        lambda x: T.log(T.nnet.sigmoid(x)).sum(),
        lambda x: T.log(1 + T.exp(x)).mean(),
        lambda x: T.log(T.exp(x).sum(axis=1)).sum(),
        lambda x: T.log(T.nnet.softmax(x))[:, 0].sum(),
        lambda x: T.log(T.nnet.sigmoid(x).flatten()).sum(),
        lambda x: (T.sqr(x).mean(0) - T.sqr(x.mean(0))).sum(),
    ],
)
def test_value_and_gradient_share_the_forward_work(build):
    x = T.dmatrix("x")
    cost = build(x)

    def count(*outputs):
        fgraph = symdnn.function([x], list(outputs), mode=symdnn.Mode().excluding("fusion")).fgraph
        return sum(
            type(n.op).__name__ in ("Softplus", "LogSumExp", "LogSoftmax", "Sum", "LogAddExp")
            for n in fgraph.toposort()
        )

    assert count(cost, T.grad(cost, x)) <= count(cost) + 1
