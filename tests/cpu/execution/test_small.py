"""Reductions of little by NumPy's ufuncs: the reference's bits, written into the plan's buffers."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config

CPU = symdnn.Mode(target="cpu").excluding("fusion")
DTYPES = ["float32", "float64", "int8", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_give_the_references_bits(rng, dtype, axis, keepdims):
    x = T.tensor3("x", dtype=dtype)
    names = ["sum", "prod", "any", "all"]
    names += ["max", "min"] if "complex" not in dtype and dtype != "bool" else []
    y = x[:, ::-1].dimshuffle(1, 0, 2)  # no plain order
    outputs = [getattr(v, n)(axis=axis, keepdims=keepdims) for v in (x, y) for n in names]
    f = symdnn.function([x], outputs, mode=CPU)
    for shape in ((3, 4, 5), (1, 1, 1), (7, 2, 1)):
        a = (rng.normal(size=shape) * 2).astype(dtype)
        if a.dtype.kind == "f":
            a.flat[0] = np.nan
        for _ in range(2):
            for found, v in zip(f(a), outputs):
                wanted = v.owner.op.reference(a if v in outputs[: len(names)] else moved(a))
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted)


def moved(a):
    return a[:, ::-1].transpose(1, 0, 2)


def test_which_reductions_are_ufuncs():
    x, h = T.dmatrix("x"), T.matrix("h", dtype="bfloat16")
    outputs = [x.sum(), x.max(axis=0), h.sum(), x.sum(dtype="float32")]
    with config.change_flags(**{"cpu.compile": "never"}):
        f = symdnn.function([x, h], outputs, mode=CPU)
        f(np.ones((2, 3)), np.ones((2, 3)).astype(h.type.numpy))
        kernels = f.lowering_report().kernels()
        assert kernels["numpy.reduce"] >= 2
        g = symdnn.function([x], [x.sum(axis=0), x.all()], mode=CPU)
        total, every = g(np.ones((0, 3)))
        assert total.tolist() == [0, 0, 0]
        assert every
        with pytest.raises(Exception, match="no extreme"):
            symdnn.function([x], x.max(), mode=CPU)(np.ones((0, 3)))
