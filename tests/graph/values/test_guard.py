"""Which values are faulty, by the definition; and the checks of both targets against it."""

import itertools

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.execution.guard import FaultCheckLaunch
from symdnn.errors import NanDetected
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.guard import fault_checks
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.guard import BIG_MAGNITUDE, ValueGuard
from symdnn.ops.collective.overlapped import StreamStart, StreamWait
from symdnn.ops.collective.reductions import AllReduce
from symdnn.world.group import Group

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
GUARDS = [ValueGuard(*on) for on in itertools.product((False, True), repeat=3)]
BELOW, ABOVE = np.nextafter(BIG_MAGNITUDE, 0), np.nextafter(BIG_MAGNITUDE, np.inf)
VALUES = [0.0, -0.0, 1.0, -1e-40, 65504.0, BELOW, BIG_MAGNITUDE, ABOVE, -1.1e10, 3e38,
          np.inf, -np.inf, np.nan, -np.nan]  # fmt: skip


def is_faulty(guard, value):
    """By the definition, of an array."""
    with np.errstate(all="ignore"):
        parts = [value.real, value.imag] if value.dtype.kind == "c" else [value]
        wide = np.concatenate([np.ravel(p).astype(np.float64) for p in parts])
        big = np.isfinite(wide) & (np.abs(wide) > BIG_MAGNITUDE)
        found = guard.nan & np.isnan(wide) | guard.inf & np.isinf(wide) | guard.big & big
    return bool(found.any())


def raises(launch, value):
    try:
        launch([value], [])
    except NanDetected:
        return True
    return False


@pytest.mark.parametrize("compiled", ["auto", "never"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_single_values_by_the_definition(dtype, compiled):
    with config.change_flags(**{"cpu.compile": compiled}), np.errstate(all="ignore"):
        for guard in GUARDS:
            if not guard.ranges(dtype):
                continue
            launch = FaultCheckLaunch(guard, numpy_dtype(dtype))
            for value in VALUES:
                a = np.full((3,), value).astype(numpy_dtype(dtype))
                assert raises(launch, a) == is_faulty(guard, a) == guard.is_faulty(a), (guard, a)


def test_what_is_on_its_way_is_checked_where_it_arrives():
    one, x = Group((0,), "one"), T.vector("x")
    (place,) = StreamStart(one, AllReduce(one)).make_node(x).outputs
    (arrived,) = StreamWait(1).make_node(place, x).outputs
    guard = ValueGuard()
    assert (guard.checked(place.owner), guard.checked(arrived.owner)) == ([], [arrived])


def test_integers_and_bools_have_no_faults():
    guard = ValueGuard()
    assert not any(guard.watches(TensorType(d, (2,))) for d in ("int32", "uint8", "bool"))
    assert not any(ValueGuard(False, False, False).ranges(d) for d in DTYPES)
    assert ValueGuard(False, False, True).ranges("float16") == ()  # 1e10 is above its largest


@pytest.mark.parametrize("size", [1, 15, 16, 17, 4095, 1 << 14, (1 << 14) + 1, 100_003])
def test_one_fault_anywhere(size, rng):
    launch = FaultCheckLaunch(ValueGuard(), np.dtype("float32"))
    a = rng.standard_normal(size).astype("f")
    assert not raises(launch, a)
    for at in {0, size - 1, int(rng.integers(size))}:
        b = a.copy()
        b[at] = np.nan
        assert raises(launch, b)
        assert not raises(launch, a)  # the flag of the last call is gone


def test_views_with_and_without_gaps(rng):
    launch = FaultCheckLaunch(ValueGuard(), np.dtype("float32"))
    a = rng.standard_normal((6, 5, 4)).astype("f")
    a[3, 2, 1] = np.inf
    assert raises(launch, a.transpose(2, 0, 1))
    assert raises(launch, a[::3, 1:3])
    assert raises(launch, a[::-1])
    assert not raises(launch, a[::2])
    assert not raises(launch, a[:0])


def test_kernels_of_a_gpu_by_the_definition(fake_device, rng):
    """The device text, compiled for this machine: several arrays in one launch."""
    with fake_device.exclusive(), np.errstate(all="ignore"):
        for dtype, guard in itertools.product(("float16", "float32", "float64"), GUARDS[1:]):
            sizes = (3, 70_001, 4096)
            arrays = [rng.standard_normal(n).astype(dtype) for n in sizes]
            for value, which in itertools.product(VALUES, range(3)):
                changed = [a.copy() for a in arrays]
                changed[which][-1 - which] = value
                placed = [fake_device.memory.upload(a, None) for a in changed]
                env = fake_device.env()
                for k in fault_checks(guard, dtype, [(a, 7 + i) for i, a in enumerate(placed)]):
                    slots = np.array([env.node, env.error_word, env.workspace], np.int64)
                    function = env.module(k.source, k.name)
                    env.launch(function, k.grid, k.block, k.shared_bytes, (k.link(slots),))
                word = fake_device.context.word.copy()
                fake_device.context.word[:] = 0
                wanted = is_faulty(guard, changed[which])
                assert list(word[:2]) == ([6, 7 + which] if wanted else [0, 0]), (guard, value)


def test_kernels_of_a_gpu_where_arrays_are_not_aligned(fake_device, rng):
    """Single elements are read then; sizes around those of a block."""
    with fake_device.exclusive():
        for dtype, guard in itertools.product(("float16", "float32", "float64"), GUARDS[1:]):
            for size, at in itertools.product((1, 2047, 2049, 5000), (0, -1)):
                whole = rng.standard_normal(size + 1).astype(dtype)
                whole[1:][at] = np.nan
                placed = fake_device.memory.upload(whole, None)
                a = RawArray(placed.ptr + whole.itemsize, (size,), dtype, owner=placed)
                env = fake_device.env()
                (k,) = fault_checks(guard, dtype, [(a, 3)])
                slots = np.array([env.node, env.error_word, env.workspace], np.int64)
                function = env.module(k.source, k.name)
                env.launch(function, k.grid, k.block, k.shared_bytes, (k.link(slots),))
                word = fake_device.context.word.copy()
                fake_device.context.word[:] = 0
                assert list(word[:2]) == ([6, 3] if guard.nan and guard.ranges(dtype) else [0, 0])
