"""Text of a kind that was never compiled here: another process tries it, and may end over it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import compile_queue, jit, proven
from symdnn.cpu.elementwise import elementwise
from symdnn.cpu.ir import elementwise_ir
from symdnn.errors import KernelCompileError
from tests.cpu.harness import needs_compiler
from tests.environment import environment

pytestmark = needs_compiler
#: LLVM cannot choose an instruction of another processor's for this one, and aborts.
DEADLY = """
declare { i64, i1 } @llvm.aarch64.rndr()
define void @kernel(ptr %w) {
  %r = call { i64, i1 } @llvm.aarch64.rndr()
  %v = extractvalue { i64, i1 } %r, 0
  store i64 %v, ptr %w
  ret void
}
"""


@pytest.fixture
def fresh(monkeypatch, nothing_compiled):
    """Nothing was compiled yet, and nothing is known."""
    queue = compile_queue.Queue()
    known = proven.Proven("kinds")
    monkeypatch.setattr(jit, "_queue", queue)
    monkeypatch.setattr(jit, "_proven", lambda: known)
    yield known
    queue.close()


def module(number, more=""):
    return f"define void @kernel(ptr %w) {{\n{more} store i64 {number}, ptr %w\n ret void\n}}\n"


def stored(text):
    word = ctypes.c_int64(0)
    jit.compile_generated(str, (text,), "kernel", ctypes.c_void_p)(ctypes.byref(word))
    return word.value


def test_a_text_that_aborts_ends_another_process(fresh):
    for _ in range(2):
        with pytest.raises(KernelCompileError, match=r"LLVM ended the process .*(SIGABRT|exit)"):
            stored(DEADLY)
    assert stored(module(3)) == 3  # another one is there for what comes next


def test_it_does_end_the_process():
    """So that the tests here are about something."""
    program = f"from symdnn.cpu.compiler import jit; jit._compiler().compile({DEADLY!r})"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, cwd=root,
        env=environment(),
    )  # fmt: skip
    assert done.returncode < 0 or b"Traceback" not in done.stderr


def test_kinds_that_went_well_are_compiled_here(fresh, monkeypatch):
    assert stored(module(5)) == 5
    monkeypatch.setattr(compile_queue, "_start_process", lambda: pytest.fail("nothing new"))
    assert stored(module(6)) == 6
    assert stored(module(7).replace("%w", "%other")) == 7
    assert proven.Proven("kinds").has(proven.kinds_of(module(8)))
    assert not fresh.has(proven.kinds_of(module(9, " %x = fadd float 1.0, 2.0\n")))


def test_kinds_are_operations_and_types():
    def kinds(line):
        return proven.kinds_of(module(0, line))

    add = kinds(" %a = fadd float %x, 0x3FF0000000000000 ; one\n")
    assert add == kinds(" %b = fadd float %z, -1.5e+00\n")
    assert add != kinds(" %a = fadd double %x, %y\n")
    assert add != kinds(" %a = fmul float %x, %y\n")
    assert kinds(" %a = fadd <8 x float> %x, %y\n") != kinds(" %a = fadd <16 x float> %x, %y\n")
    assert kinds(" %a = fadd i8 %x, %y\n") != kinds(" %a = fadd i16 %x, %y\n")
    first = kinds(" %a = call float @llvm.fabs.f32(float %x)\n")
    assert first != kinds(" %a = call float @llvm.sqrt.f32(float %x)\n")


def test_without_another_process_this_one_compiles(fresh, monkeypatch):
    monkeypatch.setattr(compile_queue, "_start_process", lambda: None)
    assert stored(module(10)) == 10
    assert stored(module(11)) == 11


def test_a_killed_process_proves_nothing(fresh, monkeypatch):
    """The kernel is compiled here then: it was not LLVM."""
    started = compile_queue._start_process

    def killed():
        process = started()
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(compile_queue, "_start_process", killed)
    assert stored(module(12)) == 12
    assert not fresh.has(proven.kinds_of(module(12)))


def deadly_if_it_has(word):
    def text(program, *more):
        made = elementwise_ir.elementwise_ir(program, *more)
        return made.replace("@kernel(", "@plain(") + DEADLY if word in program.names else made

    text.__qualname__ = f"deadly_if_it_has_{word}"
    return text


def test_a_plan_goes_on_with_numpys_kernel(fresh, monkeypatch, rng):
    monkeypatch.setattr(elementwise, "elementwise_ir", deadly_if_it_has("tanh"))
    x = T.fmatrix("x")
    w = symdnn.shared(np.ones((30, 40), "f4"))
    outs = [T.tanh(x) * 2 + 1, (x * 3 + w).sum(0)]
    f = symdnn.function([x], outs, updates=[(w, w + T.tanh(x))], mode=symdnn.Mode(target="cpu"))
    a = rng.normal(size=(30, 40)).astype("f4")
    want = np.ones((30, 40))
    with config.change_flags({"cpu.compile": "always"}):
        for call in range(4):
            if call == 0:
                with pytest.warns(RuntimeWarning, match=r"LLVM ended .* by numpy\.") as told:
                    found = f(a)
                assert len(told) == len({str(w.message) for w in told})
            else:
                found = f(a)
            np.testing.assert_allclose(found[0], np.tanh(a) * 2 + 1, rtol=1e-5)
            np.testing.assert_allclose(found[1], (a * 3 + want).sum(0), rtol=1e-4, atol=1e-4)
            want = want + np.tanh(a)
            np.testing.assert_allclose(w.get_value(), want, rtol=1e-5, atol=1e-6)
