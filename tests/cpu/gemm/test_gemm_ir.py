"""Blocks of products and packed panels, called from a module of their own as generators do."""

import ctypes
from functools import cache

import numpy as np
import pytest

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_ir import attributes, declared, functions, shape_of
from tests.seeded import new_rng

GIVEN = {
    "gemm_block": ("a", "a_row", "a_term", "b", "b_panel", "b_term", "c", "c_row", "from",
                   "from_row", "m", "n", "k", "relu"),
    "gemm_pack": ("b", "b_term", "b_column", "to", "to_panel", "to_term", "n", "k"),
}  # fmt: skip
POINTERS = {"a", "b", "c", "from", "to"}
WIDTHS = [16, 8, 4]


@cache
def function(name, width):
    """The function, its parameters by name."""
    names, shape, lines = GIVEN[name], shape_of(width), []
    kinds = ["ptr" if n in POINTERS else "i64" for n in names]
    for i, kind in enumerate(kinds):
        lines += [f"%p{i} = getelementptr i64, ptr %w, i64 {i}", f"%x{i} = load {kind}, ptr %p{i}"]
    given = ", ".join(f"{kind} %x{i}" for i, kind in enumerate(kinds))
    text = [jit.SKIP_PASSES.strip(), *declared(shape), *functions(shape), attributes(shape),
            "define void @kernel(ptr %w) #0 {", *lines, f"call void @{name}({given})", "ret void",
            "}"]  # fmt: skip
    compiled = jit.compile_function("\n".join(text) + "\n", "kernel", ctypes.c_void_p)
    return lambda **values: compiled((ctypes.c_int64 * len(names))(*(values[n] for n in names)))


def normal(*shape):
    return new_rng().normal(size=shape).astype("float32")


def at(x):
    return x.ctypes.data


def close(found, wanted, a, b):
    """To within the square root of the number of terms, of their size."""
    size = np.sqrt((a.astype("f8") ** 2) @ (b.astype("f8") ** 2)) + 1
    assert np.all(np.abs(found - wanted) <= 8 * 6e-8 * np.sqrt(a.shape[1] + 1) * size)


def packed(b, width):
    shape, (k, n) = shape_of(width), b.shape
    panels = np.full(-(-n // shape.columns) * shape.columns * k + 1, np.nan, "f4")
    function("gemm_pack", width)(
        b=at(b), b_term=b.strides[0], b_column=b.strides[1], to=at(panels),
        to_panel=4 * shape.columns * k, to_term=4 * shape.columns, n=n, k=k,
    )  # fmt: skip
    assert np.isnan(panels[-1])
    return panels


def run(a, b, width, start=None, row=0, relu=0, panels=None):
    (m, k), n, columns = a.shape, b.shape[1], shape_of(width).columns
    out = np.full((m + 1, n), 7, "f4")
    steps = (4 * columns, b.strides[0]) if panels is None else (4 * columns * k, 4 * columns)
    function("gemm_block", width)(
        a=at(a), a_row=a.strides[0], a_term=a.strides[1], b=at(b if panels is None else panels),
        b_panel=steps[0], b_term=steps[1], c=at(out), c_row=out.strides[0],
        **{"from": 0 if start is None else at(start)}, from_row=row, m=m, n=n, k=k, relu=relu,
    )  # fmt: skip
    assert (out[m] == 7).all()
    return out[:m]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 8, 9, 17])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 48, 49, 70])
def test_every_part_of_a_tile(width, m, n):
    for k in (0, 1, 2, 5, 32):
        a, b = normal(m, k), normal(k, n)
        close(run(a, b, width), a.astype("f8") @ b, a, b)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_added_and_negative_numbers_cut(width):
    a, b, more = normal(11, 23), normal(23, 53), normal(11, 53)
    plain = a.astype("f8") @ b
    close(run(a, b, width, more, 4 * 53), plain + more, a, b)
    close(run(a, b, width, more), plain + more[0], a, b)
    close(run(a, b, width, more, relu=1), np.maximum(plain + more[0], 0), a, b)
    a[3, 4] = np.nan
    assert np.isnan(run(a, b, width, relu=1)[3]).all()
    assert np.isfinite(run(a, b, width, relu=1)[[0, 1, 2, 4, 5]]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_operand_may_lie_in_any_way(width):
    b = normal(12, 20)
    for a in (normal(12, 9).T, normal(18, 24)[::2, ::2], normal(9, 12)[::-1, ::-1]):
        close(run(a, b, width), a.astype("f8") @ b, a, b)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lies", ["dense", "rows", "turned", "strided", "reversed"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 70), (16, 16), (33, 47), (40, 101), (67, 2)])
def test_panels_however_the_second_operand_lies(width, lies, shape):
    k, n = shape
    b = {
        "dense": lambda: normal(k, n), "rows": lambda: normal(2 * k, n + 3)[::2, :n],
        "turned": lambda: normal(n, k).T, "strided": lambda: normal(2 * k, 3 * n)[::2, ::3],
        "reversed": lambda: normal(n, k).T[::-1, ::-1],
    }[lies]()  # fmt: skip
    panels, columns = packed(b, width), shape_of(width).columns
    for p in range(-(-n // columns)):
        panel = panels[p * columns * k : (p + 1) * columns * k].reshape(k, columns)
        part = b[:, p * columns : (p + 1) * columns]
        np.testing.assert_array_equal(panel[:, : part.shape[1]], part)
    a = normal(13, k)
    close(run(a, b, width, panels=panels), a.astype("f8") @ b, a, b)


def test_blocks_of_rows_and_columns_have_the_bits_of_the_whole():
    width = jit.vector_width()
    a, b = normal(23, 61), normal(61, 107)
    whole, columns = run(a, b, width), shape_of(width).columns
    np.testing.assert_array_equal(run(a[9:], b, width), whole[9:])
    part = np.ascontiguousarray(b[:, columns:])
    np.testing.assert_array_equal(run(a, part, width), whole[:, columns:])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_alone_has_the_bits_that_it_has_among_others(width):
    n = 9 * shape_of(width).columns + 5  # two tiles of four panels, a panel, a part of one
    a, b, more = normal(shape_of(width).rows, 30), normal(30, n), normal(n)
    for panels in (None, packed(b, width)):
        together = run(a, b, width, more, relu=1, panels=panels)
        for i in (0, len(a) - 1):
            alone = run(a[i : i + 1], b, width, more, relu=1, panels=panels)
            np.testing.assert_array_equal(alone[0], together[i])
