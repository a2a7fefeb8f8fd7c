"""Object code in memory, without LLVM's loader."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from symdnn.cpu.compiler import elf_loader, jit

pytestmark = pytest.mark.skipif(
    bool(jit.problem()) or not elf_loader.available(), reason="no LLVM, or another machine"
)


def compiled(text: str) -> bytes:
    return jit._compiler().compile(text)


def test_instructions_run():
    run = elf_loader.run_bytes(bytes.fromhex("48c7072a000000 c3"), ctypes.c_void_p)
    word = ctypes.c_int64(0)
    run(ctypes.byref(word))  # mov qword ptr [rdi], 42; ret
    assert word.value == 42


def test_constants_tables_and_functions_of_the_process_are_found():
    code = compiled("""
    @table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
    declare double @cos(double)
    define internal double @twice(double %x) noinline {
      %y = fmul double %x, 2.0
      ret double %y
    }
    define void @run(ptr %w) {
      %k = load i64, ptr %w
      %at = getelementptr [4 x double], ptr @table, i64 0, i64 %k
      %x = load double, ptr %at
      %c = call double @cos(double %x)
      %y = call double @twice(double %c)
      %z = fadd double %y, 0x3FD3333333333333
      %to = getelementptr i64, ptr %w, i64 1
      store double %z, ptr %to
      ret void
    }
    """)
    run = elf_loader.function_at(elf_loader.place(code, "run"), ctypes.c_void_p)
    for k, x in enumerate((1.5, 2.5, 3.5, 4.5)):
        words = np.array([k, 0], np.int64)
        run(words.ctypes.data)
        assert words.view(np.float64)[1] == 2 * np.cos(x) + 0.3


def test_functions_that_are_far_away_are_called_and_their_addresses_read():
    code = compiled("""
    declare double @cos(double)
    declare double @sin(double)
    define double @half(double %x) noinline {
      %y = fmul double %x, 0.5
      ret double %y
    }
    define void @run(ptr %w) {
      %first = load i64, ptr %w
      %is_one = icmp eq i64 %first, 1
      %other = select i1 %is_one, ptr @sin, ptr @half
      %a = call double @cos(double 0.25)
      %b = call double %other(double 0.5)
      %sum = fadd double %a, %b
      %to = getelementptr i64, ptr %w, i64 1
      store double %sum, ptr %to
      ret void
    }
    """)
    placed = elf_loader._Object(code)
    run = elf_loader.function_at(placed.place("run"), ctypes.c_void_p)
    assert placed._links
    for k, added in ((1, np.sin(0.5)), (2, 0.25)):
        words = np.array([k, 0], np.int64)
        run(words.ctypes.data)
        assert words.view(np.float64)[1] == np.cos(0.25) + added


def test_constants_are_read_by_their_distance_unless_the_module_says_so():
    text = "define void @f(ptr %w) {\n %x = load double, ptr %w\n %y = fmul double %x, 0.3\n"
    text = text.replace("0.3", "0x3FD3333333333333") + " store double %y, ptr %w\n ret void\n}\n"
    near, far = (compiled(first + text) for first in ("", jit.FAR_CONSTANTS))
    kinds = []
    for code in (near, far):
        o = elf_loader._Object(code)
        tables = [s for s in o.sections if s.kind == elf_loader._SHT_RELA and s.info in o.at]
        kinds.append({kind for t in tables for _, kind, _, _ in o._relocations(t)})
        run = elf_loader.function_at(elf_loader.place(code, "f"), ctypes.c_void_p)
        number = np.array([2.0])
        run(number.ctypes.data)
        assert number[0] == 2 * 0.3
    assert kinds == [{elf_loader._R_X86_64_PC32}, {elf_loader._R_X86_64_64}]


def test_code_cannot_be_written_when_it_is_there():
    address = elf_loader.place(compiled("define void @f(ptr %w) { ret void }"), "f")
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                assert line.split()[1].startswith("r-x")
                return
    raise AssertionError("it is nowhere")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: b"\x7fELF\x01" + c[5:], "no object file"),
        (lambda c: c[:70], "odd"),
        (lambda c: c, "there is no other"),
    ],
)
def test_what_is_not_known_is_left_to_llvm(change, says):
    code = compiled("define void @f(ptr %w) { ret void }")
    with pytest.raises(elf_loader.UnsupportedObject, match=says):
        elf_loader.place(change(code), "other")


def test_code_that_writes_to_memory_of_its_own_is_left_to_llvm():
    code = compiled("""
    @count = internal global i64 7
    define void @f(ptr %w) {
      %old = load i64, ptr @count
      %new = add i64 %old, 1
      store i64 %new, ptr @count
      ret void
    }
    """)
    with pytest.raises(elf_loader.UnsupportedObject, match="written to"):
        elf_loader.place(code, "f")


def test_an_undefined_symbol_is_said():
    code = compiled("""
    declare void @nobody_has_this()
    define void @f(ptr %w) {
      call void @nobody_has_this()
      ret void
    }
    """)
    with pytest.raises(elf_loader.UnsupportedObject, match="nobody_has_this is not defined"):
        elf_loader.place(code, "f")


def test_llvms_own_loader_gives_the_same(monkeypatch, tmp_path):
    text = "define void @f(ptr %w) {\n store i64 7, ptr %w\n ret void\n}\n"

    def refuse(code, name):
        raise elf_loader.UnsupportedObject("not today")

    monkeypatch.setattr(elf_loader, "place", refuse)
    run = jit.compile_function(text, "f", ctypes.c_void_p, folder=tmp_path)
    word = ctypes.c_int64(0)
    run(ctypes.byref(word))
    assert word.value == 7
