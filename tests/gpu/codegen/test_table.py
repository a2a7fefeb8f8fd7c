"""Every kernel with device text of our own, run on a CPU over the op table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import op_table, seeded
from tests.gpu import emulator
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import Try, assert_close, in_one_gauge, tries

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")


def check(one: Try, laid_out: Any) -> int:
    """Run all kernels of one try; how many there were."""
    found = generated_kernels(one.call)
    read = set(one.call.op.host_inputs)
    for kernel in found:
        arrays = [a if i in read else laid_out(a) for i, a in enumerate(one.inputs)]
        results, env = emulator.run(kernel, one.call, arrays)
        assert env.error[0] == 0
        results = in_one_gauge(one.call.op, results, one.expected)
        for got, want in zip(results, one.expected, strict=True):
            assert_close(got, want)
    return len(found)


def dense(a: Any) -> Any:
    return emulator.device_copy(a)[1]


def strided(a: Any) -> Any:
    """The same values in every second place of a larger array, backwards in the first dimension."""
    if a.ndim == 0:
        return dense(a)
    memory = dense(np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype))
    view = memory[::-1, ..., 1::2] if a.ndim > 1 else memory[1::2][::-1]
    view[...] = a
    return view


def shifted(a: Any) -> Any:
    """The same values, contiguous, at an address that is a multiple of nothing but their size."""
    memory = dense(np.zeros(a.size + 1, a.dtype))
    view = memory[1:].reshape(a.shape)
    view[...] = a
    return view


def sample() -> list[Try]:
    """One try of each op, and only so many."""
    found: dict[type, Try] = {}
    for one in tries():
        found.setdefault(type(one.call.op), one)
    return list(found.values())[::6]


# Drawing all tries takes a second: not while collecting.
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("laid_out", [dense, shifted])
def test_sample(third, laid_out):
    for one in sample()[third::3]:
        try:
            check(one, laid_out)
        except Exception as error:
            error.add_note(one.id)
            raise


def of_family(family: str) -> list[Try]:
    """The tries of the records in one module of the op table."""
    wanted = {case.id for case in op_table.families()[family]}
    return [one for one in tries() if one.id.rsplit("-", 2)[0] in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("family", op_table.families())
def test_kernels_agree_with_the_reference(family):
    for one in of_family(family):
        check(one, dense)


@pytest.mark.slow
@pytest.mark.parametrize("family", op_table.families())
def test_kernels_agree_on_inputs_anywhere(family):
    """Each kernel on one of the layouts, on the other at the next turn."""
    for i, one in enumerate(of_family(family), seeded.turn()):
        check(one, (strided, shifted)[i % 2])


@pytest.mark.slow
def test_most_records_have_kernels():
    assert sum(len(generated_kernels(one.call)) for one in tries()) > 900
