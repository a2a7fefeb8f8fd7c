"""Kernels that write new values: guarded ones and those for many arrays; compiled, and emulated."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.binding import nvrtc
from symdnn.gpu.codegen.batch import CHUNK_ELEMENTS, Form, batched, batched_source, form_of
from symdnn.gpu.codegen.launches import View, contiguous_view
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.batched_updates import copy_all, enqueue
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import Builder, identity_program
from tests.gpu.emulator import AVAILABLE, HostEnv, device_copy
from tests.seeded import new_rng

emulated = pytest.mark.skipif(not AVAILABLE, reason="there is no g++")


def momentum(dtype, rate="float32"):
    """(v, g, p, rate) -> (v', p')."""
    builder = Builder((dtype, dtype, dtype, rate))
    v, g, p, r = (builder.input(i).cast("float64") for i in range(4))
    new = v * 0.5 + g
    return builder.program([new.cast(dtype), (p - r * new).cast(dtype)])


def targets():
    return [c for c in ((8, 0), (9, 0), (10, 0)) if c in nvrtc.supported_architectures()]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_they_compile(dtype):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    program = momentum(dtype)
    form = Form(program, (False, False, False, True))
    views = [contiguous_view(i, TensorType(dtype, (7, 5))) for i in range(3)]
    rate = View(3, "float32", (1, 1), (0, 0))
    outputs = [contiguous_view(4 + i, TensorType(dtype, (7, 5))) for i in range(2)]
    (guarded,) = elementwise(program, [*views, rate], outputs, guarded=True)
    assert "p.guard" in guarded.source
    for source in (guarded.source, batched_source(form, 1), batched_source(form, 4)):
        for capability in targets():
            assert nvrtc.compile_cubin(source, capability)


def members(dtype, sizes, r, offset=0):
    """Operands on the emulated device, and what they hold."""
    items, held = [], []
    rate, _ = device_copy(np.float32(0.25))
    for n in sizes:
        arrays = [device_copy(r.standard_normal(n + offset).astype(dtype)) for _ in range(3)]
        v, g, p = (
            RawArray(a.ptr + offset * a.itemsize, (n,), a.dtype, (), (a, h)) for a, h in arrays
        )
        items.append([v, g, p, rate, v, p])
        held.append([h[offset:] for _, h in arrays])
    return items, held


@emulated
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_array_gets_its_own(dtype, offset):
    """In place, of all sizes, also where the addresses allow no vectors."""
    sizes = (1, 3, 5, 255, 4096, CHUNK_ELEMENTS + 1, 2 * CHUNK_ELEMENTS + 7, 100)
    items, held = members(dtype, sizes, new_rng(), offset)
    form = Form(momentum(dtype), (False, False, False, True))
    want = []
    for v, g, p in held:
        new = v.astype("float64") * 0.5 + g
        want.append((new.astype(dtype), (p - 0.25 * new).astype(dtype), g.copy()))
    env = HostEnv()
    enqueue(env, batched(form, items))
    assert env.launched == ["batched"]
    for (v, g, p), (new_v, new_p, old_g) in zip(held, want, strict=True):
        np.testing.assert_array_equal(v, new_v)
        np.testing.assert_array_equal(p, new_p)
        np.testing.assert_array_equal(g, old_g)


@emulated
def test_more_arrays_than_a_table_takes():
    form = Form(momentum("float32"), (False, False, False, True))
    count = 2 * form.max_arrays + 3
    items, held = members("float32", [k % 9 + 1 for k in range(count)], new_rng())
    want = [v * np.float32(0.5) + g for v, g, _ in held]
    env = HostEnv()
    enqueue(env, batched(form, items))
    assert env.launched == ["batched"] * 3
    for (v, _, _), new in zip(held, want, strict=True):
        np.testing.assert_allclose(v, new, rtol=1e-6)


@emulated
def test_nothing_is_written_when_the_error_word_is_set():
    items, held = members("float32", (5, 9000), new_rng())
    before = [[h.copy() for h in arrays] for arrays in held]
    env = HostEnv()
    env._word[0] = 3
    enqueue(env, batched(Form(momentum("float32"), (False, False, False, True)), items))
    for arrays, old in zip(held, before, strict=True):
        for a, b in zip(arrays, old, strict=True):
            np.testing.assert_array_equal(a, b)


@emulated
@pytest.mark.parametrize("fails", [False, True])
def test_copies_of_any_size_and_type(fails):
    r = new_rng()
    values = [
        *(r.standard_normal(n).astype("float32") for n in (3, 4097)),
        *(r.standard_normal((2, n)) for n in (3, 5)),
        r.standard_normal(6) + 1j,
        np.array([True, False, True]),
        r.integers(0, 9, (2, 3)),
        np.empty((0, 3), "float32"),
    ]
    sources = [device_copy(v) for v in values]
    targets = [device_copy(np.zeros_like(v)) for v in values]
    strided = device_copy(np.arange(12, dtype="float32").reshape(3, 4))
    column = RawArray(strided[0].ptr, (3,), "float32", (16,), strided[0])
    sources.append((column, strided[1][:, 0]))
    targets.append(device_copy(np.zeros(3, "float32")))
    env = HostEnv()
    env._word[0] = int(fails)
    copy_all(env, [(s, t) for (s, _), (t, _) in zip(sources, targets, strict=True)])
    for (_, s), (_, t) in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(t, np.zeros_like(t) if fails else s)
    assert env.launched.count("batched") == 2


def test_which_arrays_may_be_together():
    program = identity_program("float32")
    full = RawArray(64, (3, 4), "float32")
    one = RawArray(64, (1, 1), "float32")
    row = RawArray(64, (1, 4), "float32")
    column = RawArray(64, (3, 4), "float32", (4, 12))
    assert form_of(program, [full], [full]) == Form(program, (False,))
    assert form_of(program, [one], [full]) == Form(program, (True,))
    assert form_of(program, [row], [full]) is None
    assert form_of(program, [column], [full]) is None
    assert form_of(program, [full], [column]) is None
    empty = RawArray(0, (0, 4), "float32")
    assert form_of(program, [empty], [empty]) is None
