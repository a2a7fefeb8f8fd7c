"""Every op of the table by the CPU's compiled kernels, with operands of all kinds of strides.

Operands as small as the table's are left to NumPy by themselves; here all is compiled that can be.
"""

import numpy as np

import symdnn
from symdnn.config import config
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from tests.cpu.harness import needs_compiler
from tests.op_table import of_each
from tests.test_op_table import CASES, SINGLE, case_rng, draw, outputs, variables

pytestmark = needs_compiler

#: In single precision, which most kernels are for; other values are passed unchanged.
IN_SINGLE = {c.id for c in SINGLE}


def gaps(a):
    """Between any two elements is another number."""
    wide = np.full([2 * n + 1 for n in a.shape], 7, a.dtype)
    view = wide[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    view[...] = a
    return view


def backwards(a):
    """Every stride is negative."""
    turn = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[turn])[turn]


def misaligned(a):
    """Two bytes off from where its elements would begin."""
    raw = np.zeros(a.nbytes + 64, np.uint8)
    start = 2 + -raw.ctypes.data % 64
    view = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def far(a):
    """Rows whose distance is no multiple of anything that vectors or lines of a cache have."""
    wide = np.full((a.shape[0], 1031, *a.shape[1:]), 7, a.dtype)
    wide[:, 5] = a
    return wide[:, 5]


def read_only(a):
    """Nothing may be written there."""
    a = a.copy()
    a.flags.writeable = False
    return a


WAYS = (np.ascontiguousarray, np.asfortranarray, gaps, backwards, misaligned, far, read_only)


def laid(arrays, rng):
    """The arrays, each with other strides."""
    return [WAYS[rng.integers(len(WAYS))](a) if a.ndim else a for a in arrays]


@of_each(CASES, every=6)
def test_compiled_kernels_take_operands_however_they_lie(case):
    rng, single = case_rng(case, 32), case.id in IN_SINGLE
    arrays = draw(case, 31)
    if single:
        arrays = [a.astype("float32") if a.dtype == np.float64 else a for a in arrays]
    vs = variables(case, arrays)
    outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
    wanted = evaluate(outs, dict(zip(vs, arrays)))
    tolerance = 2e-4 if single else max(case.rtol, 1e-6)
    with config.change_flags(**{"cpu.compile": "always", "openmp.threads": 2}):
        f = symdnn.function(vs, outs, mode=symdnn.Mode(target="cpu"), on_unused_input="ignore")
        f.trust_input = True
        for given in (arrays, laid(arrays, rng), laid(arrays, rng), arrays):
            before = [np.array(a) for a in given]
            for got, want in zip(f(*given), wanted, strict=True):
                assert got.dtype == want.dtype
                assert got.shape == want.shape
                size = float(np.max(np.abs(want), initial=0, where=np.isfinite(want)))
                np.testing.assert_allclose(
                    got, want, rtol=tolerance, atol=tolerance * max(size, 1),
                    err_msg=str([a.strides for a in given]),
                )  # fmt: skip
            for a, b in zip(given, before):
                np.testing.assert_array_equal(a, b)
