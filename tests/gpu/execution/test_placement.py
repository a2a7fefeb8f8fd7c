"""What a graph's types place on the device has a kernel there at every plan's shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import symdnn.tensor as T
from symdnn.compile.program.capabilities import kernel_reason
from symdnn.gpu import registry
from symdnn.gpu.codegen.launches import CudaKernel
from symdnn.graph.kernel import kernels_for
from symdnn.graph.type import DTYPES, TensorType
from tests.gpu.table import tries
from tests.seeded import sampled


def retyped(call, dtype):
    """The call with ``dtype`` in place of its floating operands; None where the op has none."""
    types = [TensorType(dtype, t.shape) if t.is_float or t.is_complex else t for t in call.inputs]
    try:
        outputs = call.op.output_types(types)
    except Exception:
        return None
    shaped = [t.with_shape(o.shape) for t, o in zip(outputs, call.outputs, strict=True)]
    return replace(call, inputs=tuple(types), outputs=tuple(shaped))


def resized(call, size):
    """Its dimensions that are not 1, all of this size (None: unknown)."""

    def of(t):
        return TensorType(t.dtype, tuple(1 if n == 1 else size for n in t.shape))

    return replace(call, inputs=tuple(map(of, call.inputs)), outputs=tuple(map(of, call.outputs)))


def takes(kernel, call):
    try:
        return kernel.refuses(call) is None
    except TypeError:  # over sizes that no type knows
        return True


@pytest.mark.parametrize("dtype", sampled(sorted(DTYPES), every=3))
def test_a_kernel_that_types_promise_is_there_at_shapes(dtype):
    registry.load()
    missing, seen = {}, 0
    for one in tries():
        call = retyped(one.call, dtype)
        own = [k for k in kernels_for(type(one.call.op), "cuda") if isinstance(k, CudaKernel)]
        if call is None or not any(takes(k, resized(call, None)) for k in own):
            continue
        for sized in (call, resized(call, 0)):
            seen += 1
            if not any(takes(k, sized) for k in own):
                missing[str(sized)] = [(k.name, k.refuses(sized)) for k in own]
    assert seen > 50
    assert not missing, "\n".join(f"{call}: {why}" for call, why in missing.items())


@pytest.mark.parametrize("build", [T.sort, T.argsort, lambda x: T.topk(x, 2)])
@pytest.mark.parametrize("shape", [(None,), (2,), (5,)])
def test_sorting_complex_numbers_stays_on_the_host(build, shape):
    registry.load()
    x = T.TensorType("complex64", shape)("x")
    assert "complex64" in str(kernel_reason(build(x).owner, "cuda"))
