"""Ranges of the integers of a program hold, and divisions that use them are NumPy's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.ir.ranges import value_ranges
from symdnn.ops.lowered.fused import FusedElemwise
from tests.seeded import new_rng

PROGRAMS = {
    "grey": lambda x: (x.astype("int64") * 77 + 128) // 256,
    "bits": lambda x: ((x.astype("int32") & 7) - 3) % 4,
    "mirror": lambda x: (255 - x.astype("int64")) % 100,
    "below the divisor": lambda x: x.astype("int64") % 1000 + x.astype("int64") // 1000,
    "negative": lambda x: (x.astype("int64") - 200) % 7 + (x.astype("int64") - 200) // 7,
    "clipped": lambda x: T.clip(x.astype("int64") * -3, -90, 91) % 11,
    "hash": lambda x: (x.astype("int64") % 101 * 257 + 5) % 1000003 % 97,
    "chosen": lambda x: T.switch(x > 3, x.astype("int64") >> 1, -x.astype("int64")) // 5,
    "overflow": lambda x: (x.astype("int32") * 2**24) // 3,
    "own dtype": lambda x: (x * 3) % 50 + (x + 100) // 7,
    "size": lambda x: abs(x.astype("int64") - 9) % 5,
    "wide": lambda x: (x.astype("int64") * 2**40 + 7) % 1000 + (x.astype("int64") << 23) // 9,
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "uint16", "int32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_divisions_of_known_ranges(name, dtype):
    x = T.vector("x", dtype=dtype)
    if dtype == "bool" and name == "own dtype":
        pytest.skip("no remainders of bool")
    limits = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    given = np.array([*limits, 0, 1, *new_rng().integers(*limits, 300)]).astype(dtype)
    f = symdnn.function([x], PROGRAMS[name](x), mode=symdnn.Mode(target="cpu"))
    with np.errstate(all="ignore"):
        want = symdnn.function([x], PROGRAMS[name](x), mode="FAST_COMPILE")(given)
    np.testing.assert_array_equal(f(given), want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_value_is_outside_of_its_range(name):
    """And those of a byte that is converted are narrower than its dtype."""
    x = T.vector("x", dtype="uint8")
    f = symdnn.function([x], PROGRAMS[name](x), mode=symdnn.Mode(target="cpu"))
    (program,) = [n.op.program for n in f.fgraph.toposort() if isinstance(n.op, FusedElemwise)]
    given = np.arange(256, dtype="uint8")
    every = type(program)(program.inputs, program.body, tuple(range(len(program.body) + 1)))
    ranges = value_ranges(program)
    for found, known in zip(every.evaluate(given), ranges, strict=True):
        assert known is not None
        assert known[0] <= int(found.min())
        assert int(found.max()) <= known[1]
    if name in ("grey", "mirror", "hash"):
        low, high = ranges[program.outputs[0]]
        assert low == 0
        assert high < 2**17
