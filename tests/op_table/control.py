from __future__ import annotations

import numpy as np

from symdnn.ops.control import checkpoint as P
from symdnn.ops.control import control as C
from symdnn.ops.core import gradient_control as G
from tests.op_table.record import OpCase, normal, uniform


def choose(c, x, y):
    return C.ifelse(c.sum() > 0, x * y, x + y)


def expected_choice(c, x, y):
    return x * y if c.sum() > 0 else x + y


CASES = [
    OpCase(
        "ifelse_true",
        (C.IfElse,),
        choose,
        (uniform(1, 2, 3), normal(2, 3), normal(2, 3)),
        expected_choice,
    ),
    OpCase(
        "ifelse_false",
        (C.IfElse,),
        choose,
        (uniform(-2, -1, 3), normal(2, 3), normal(2, 3)),
        expected_choice,
    ),
    OpCase(
        "ifelse_many",
        (C.IfElse,),
        lambda x, y: C.ifelse(x.sum() > y.sum(), [x, y], [y, x]),
        (normal(4), normal(4)),
        lambda x, y: [x, y] if x.sum() > y.sum() else [y, x],
    ),
    OpCase(
        "disconnected_grad",
        (G.DisconnectedGrad,),
        G.disconnected_grad,
        (normal(3),),
        np.copy,
        grad=False,
    ),
    OpCase("zero_grad", (G.ZeroGrad,), G.zero_grad, (normal(3),), np.copy, grad=False),
    OpCase(
        "undefined_grad", (G.UndefinedGrad,), G.undefined_grad, (normal(3),), np.copy, grad=False
    ),
    OpCase(
        "grad_clip",
        (G.GradClip,),
        lambda x: G.grad_clip(x, -0.1, 0.1),
        (normal(3),),
        np.copy,
        grad=False,
    ),
    OpCase(
        "grad_where",
        (G.GradWhere,),
        lambda x, m: G.GradWhere()(x, m),
        (normal(3, 2), lambda rng: rng.random(3) > 0.5),
        lambda x, m: x,
        grad=False,
    ),
    OpCase("opaque", (G.Opaque,), lambda x: G.Opaque()(x), (normal(2, 3),), lambda x: x),
    OpCase(
        "after",
        (P.After,),
        lambda x, y: P.After()(x, y) * y,
        (normal(2, 3), normal(2, 3)),
        lambda x, y: x * y,
    ),
    OpCase(
        "checkpoint",
        (P.Checkpoint,),
        P.checkpoint(lambda x, y: tuple(v * (x * y).exp() for v in (x, y))),
        (normal(2, 3), normal(3)),
        lambda x, y: (x * np.exp(x * y), y * np.exp(x * y)),
    ),
    OpCase(
        "checkpoint_nested",
        (P.Checkpoint,),
        P.checkpoint(lambda x: P.checkpoint(lambda v: (v * v).exp())(x * 2) + x),
        (uniform(-0.5, 0.5, 2, 3),),
        lambda x: np.exp(4 * x * x) + x,
    ),
    OpCase(
        "straight_through",
        (G.StraightThrough,),
        lambda x: G.straight_through(x + 0, x),
        (normal(3),),
        np.copy,
    ),
    OpCase(
        "grad_scale",
        (G.GradScale,),
        lambda x: G.grad_scale(x, 3.0),
        (normal(3),),
        np.copy,
        grad=False,
    ),
    OpCase(
        "assert",
        (G.Assert,),
        lambda x: G.assert_(x, x > 0) * 2,
        (uniform(1, 2, 3),),
        lambda x: 2 * x,
    ),
    OpCase(
        "print",
        (G.Print,),
        lambda x: G.Print("p", ("shape",))(x) * 2,
        (normal(3),),
        lambda x: 2 * x,
    ),
]
