"""Object code that is kept: it is what its name says, or it is compiled anew."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from symdnn.cpu.compiler import elf_loader, jit
from symdnn.disk import overlay
from symdnn.disk.object_file import host_machine, problem, sections_of
from tests.cpu.all_proven import AllProven
from tests.forked import forked

pytestmark = pytest.mark.skipif(bool(jit.problem()), reason="no LLVM")

MODULE = "define void @f(ptr %w) {{\n store i64 {}, ptr %w\n ret void\n}}\n"
#: One with all that the loader follows: constants, a table, functions of the process.
LONGER = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare double @cos(double)
define void @f(ptr %w) {
  %k = load i64, ptr %w
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %k
  %x = load double, ptr %at
  %c = call double @cos(double %x)
  store double %c, ptr %w
  ret void
}
"""


@pytest.fixture(autouse=True)
def afresh(monkeypatch, nothing_compiled):
    monkeypatch.setattr(jit, "_proven", AllProven)
    monkeypatch.setattr(overlay, "_given", {})  # by files that other tests loaded


def made(number, folder):
    """A function that stores this number, and whether it came from disk."""
    jit._functions.clear()
    before, begun = jit.Code.enqueue, []  # by whom it is compiled then, chance decides
    with pytest.MonkeyPatch.context() as m:
        m.setattr(jit.Code, "enqueue", lambda code, text: (begun.append(text), before(code, text)))
        run = jit.compile_function(MODULE.format(number), "f", ctypes.c_void_p, folder=folder)
    word = ctypes.c_int64(0)
    run(ctypes.byref(word))
    return word.value, not begun


def test_entries_under_each_others_names_are_made_anew(tmp_path):
    for n in (3, 4):
        assert made(n, tmp_path) == (n, False)
        assert made(n, tmp_path) == (n, True)
    one, other = sorted(tmp_path.glob("*.o"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    for n in (3, 4):
        with pytest.warns(RuntimeWarning, match="dropped, compiled anew"):
            assert made(n, tmp_path) == (n, False)
        assert made(n, tmp_path) == (n, True)


CONTENTS = {
    "nothing": lambda code, other: b"",
    "text": lambda code, other: b"no object file" * 100,
    "the first half": lambda code, other: code[: len(code) // 2],
    "its head": lambda code, other: code[:64],
    "another function": lambda code, other: other,
    "another machine": lambda code, other: code[:18] + b"\x28\x00" + code[20:],
    "sections far away": lambda code, other: code[:40] + b"\xff" * 8 + code[48:],
}


@pytest.mark.skipif(host_machine() is None, reason="object files are others")
@pytest.mark.parametrize("content", CONTENTS)
def test_another_content_with_a_right_checksum_is_made_anew(tmp_path, content):
    made(5, tmp_path)
    (mine,) = tmp_path.glob("*.o")
    made(6, tmp_path)
    (other,) = set(tmp_path.glob("*.o")) - {mine}
    bodies = [jit.OBJECTS.content(p.stem, p.read_bytes()) for p in (mine, other)]
    jit.OBJECTS.put(mine.stem, CONTENTS[content](*bodies), tmp_path)
    with pytest.warns(RuntimeWarning, match=r"is damaged \(.+\): dropped, compiled anew"):
        assert made(5, tmp_path) == (5, False)
    assert made(5, tmp_path) == (5, True)


MUTATED = """
import random, sys
from symdnn.cpu.compiler import elf_loader as placed_code
from symdnn.disk.object_file import host_machine, problem
code, seed = open(sys.argv[1], "rb").read(), int(sys.argv[2])
draw, placed = random.Random(seed), 0
for turn in range(4000):
    bad = bytearray(code)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(bad))
        bad[at:at + 1] = draw.choice((bytes([draw.randrange(256)]), b"\\xff", b"\\0", b"\\x80"))
    if draw.random() < 0.2:
        del bad[draw.randrange(len(bad)):]
    if not problem(bytes(bad), host_machine(), "f"):
        try:
            placed_code.place(bytes(bad), "f")
            placed += 1
        except placed_code.UnsupportedObject:
            pass
print(placed)
"""


@pytest.mark.skipif(not elf_loader.available(), reason="another machine")
def test_no_damage_of_an_object_file_ends_the_process(tmp_path, rng):
    (tmp_path / "good").write_bytes(jit._compiler().compile(LONGER))
    seed = str(rng.integers(2**31))
    done = forked(MUTATED, tmp_path / "good", seed)
    assert done.returncode == 0, (seed, done.returncode, done.stderr)
    assert int(done.stdout) > 100  # most bytes are instructions and constants


@pytest.mark.skipif(not elf_loader.available(), reason="another machine")
def test_a_relocation_that_points_elsewhere_is_found():
    code = jit._compiler().compile(LONGER)
    assert problem(code, host_machine(), "f") == ""
    for section in sections_of(code):
        if section.kind == 4:  # relocations: where, symbol and kind, addend
            for at in range(section.offset, section.offset + section.size, 24):
                for k, value in ((0, 1 << 40), (8, 99 << 32)):
                    bad = bytearray(code)
                    struct.pack_into("<Q", bad, at + k, value)
                    assert "points out" in problem(bytes(bad), host_machine(), "f")


@pytest.mark.skipif(not elf_loader.available(), reason="another machine")
def test_code_that_calls_what_is_not_there_is_made_anew(tmp_path):
    """As that of a process with another libm: LLVM's own loader would end this one."""
    made(7, tmp_path)
    (entry,) = tmp_path.glob("*.o")
    name = f"f_{entry.stem[:24]}"
    text = f"declare void @nobody_has_this()\ndefine void @{name}(ptr %w) {{\n"
    text += " call void @nobody_has_this()\n ret void\n}\n"
    jit.OBJECTS.put(entry.stem, jit._compiler().compile(text), tmp_path)
    assert made(7, tmp_path) == (7, False)
    assert made(7, tmp_path) == (7, True)


def test_facts_that_are_not_llvms_are_asked_for_anew():
    right = jit._facts()
    for content in (b"", b"{}", b"[]", b"[1, 2, 3]", b'["a", "b"]', b"\xff"):
        jit.FACTS.put(jit._facts_key(), content)
        jit._facts.cache_clear()
        with pytest.warns(RuntimeWarning, match="dropped"):
            assert jit._facts() == right
        jit._facts.cache_clear()
        assert jit._facts() == right


def test_a_makers_text_follows_from_what_it_is_given_alone(tmp_path):
    """No flag is read meanwhile: flags are not in the key."""
    program = """
        import numpy as np, symdnn, symdnn.tensor as T
        from symdnn.config import Config
        from symdnn.cpu.compiler import jit
        inside, real, begin = [], Config._setting, jit._code
        def setting(self, name):
            assert not inside, name
            return real(self, name)
        Config._setting = setting
        def code(key, text_of, *rest):
            def text():
                inside.append(1)
                try:
                    return text_of()
                finally:
                    inside.pop()
            return begin(key, text, *rest)
        jit._code = code
        x, w = T.ftensor4(), T.ftensor4()
        y = T.tanh(T.nnet.conv2d(x, w)).sum(axis=(2, 3))
        y = T.nnet.softmax(y) + T.argmax(y, axis=1).dimshuffle(0, "x")
        f = symdnn.function([x, w], [y, *symdnn.grad(y.sum(), [x, w])])
        print(len(f(np.ones((4, 3, 9, 9), "f"), np.ones((5, 3, 3, 3), "f"))), len(jit._functions))
    """
    import textwrap

    environment = {**os.environ, "SYMDNN_FLAGS": f"base_compiledir={tmp_path},cpu.compile=always"}
    done = forked(textwrap.dedent(program), env=environment)
    assert done.returncode == 0, done.stderr
    count, kernels = map(int, done.stdout.split())
    assert (count, kernels > 4) == (3, True)
