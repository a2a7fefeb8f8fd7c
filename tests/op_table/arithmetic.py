from __future__ import annotations

import numpy as np

from symdnn.ops import arithmetic as A
from tests.op_table.record import OpCase, normal, uniform

CASES = [
    OpCase("add", (A.Add,), A.add, (normal(3, 4), normal(3, 4)), np.add, grad2=True),
    OpCase("add_row", (A.Add,), A.add, (normal(3, 4), normal(1, 4)), np.add),
    OpCase("add_vector", (A.Add,), A.add, (normal(3, 4), normal(4)), np.add),
    OpCase("sub", (A.Sub,), A.sub, (normal(3, 4), normal(3, 1)), np.subtract),
    OpCase("mul", (A.Mul,), A.mul, (normal(3, 4), normal(4)), np.multiply, grad2=True),
    OpCase("true_div", (A.TrueDiv,), A.true_div, (normal(3, 4), uniform(1, 2, 3, 4)), np.divide),
    OpCase("neg", (A.Neg,), A.neg, (normal(3, 4),), np.negative),
    OpCase("exp", (A.Exp,), A.exp, (normal(3, 4),), np.exp, grad2=True),
    OpCase("log", (A.Log,), A.log, (uniform(0.5, 3, 3, 4),), np.log, grad2=True),
]
