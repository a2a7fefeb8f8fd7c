"""float16 and bfloat16 in compiled code: all numbers converted, nothing computed in 16 bits."""

import ctypes
import re
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.scalar_ir import Printer
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from tests.cpu.filled_memory import fill
from tests.cpu.harness import needs_compiler
from tests.seeded import sampled
from tests.test_op_table import CASES, draw, outputs, variables

pytestmark = [
    needs_compiler,
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),  # NumPy's, of NaN
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]
CPU = symdnn.Mode(target="cpu")
NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def same(found, wanted):
    """Equal bits, but that of NaN only its sign need agree."""
    found, wanted = (np.asarray(a) for a in (found, wanted))
    assert found.dtype == wanted.dtype
    nan = np.isnan(wanted.astype("f8"))
    np.testing.assert_array_equal(np.isnan(found.astype("f8")), nan)
    kind = f"u{wanted.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(kind)[~nan], wanted.view(kind)[~nan])


@pytest.fixture(params=["the processor's", "by whole numbers"])
def way(request, monkeypatch):
    """How numbers are converted: as is best here, and as where there is no instruction for it."""
    if request.param == "by whole numbers":
        monkeypatch.setattr(jit, "has", lambda feature: False)
        request.getfixturevalue("nothing_compiled")


def elementwise_program(x, y):
    """The scalar program of an expression, fused or of one op."""
    f = symdnn.function([x], y, mode=CPU)
    (node,) = [n for n in f.fgraph.toposort() if isinstance(n.op, Elemwise | FusedElemwise)]
    if isinstance(node.op, FusedElemwise):
        return node.op.program
    return meaning(node.op, tuple(v.type.dtype for v in node.inputs))


def converted(source, target, values):
    """The values from one dtype to the other by compiled code."""
    x = T.TensorType(source, (None,))("x")
    f = symdnn.function([x], x.astype(target), mode=CPU)
    with config.change_flags(**{"cpu.compile": "always"}), np.errstate(all="ignore"):
        return f(values)


CHOSEN = {
    "relu": T.nnet.relu, "clip": lambda x: T.clip(x, -0.75, 6), "neg": lambda x: -x, "abs": abs,
    "max": lambda x: T.maximum(x, x.type.numpy.type(0.3)), "where": lambda x: T.where(x < 1, x, -x),
}  # fmt: skip


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.usefixtures("way")
def test_all_numbers_that_are_chosen_stay_as_they_are(narrow, name):
    x = T.TensorType(narrow, (None,))("x")
    values = np.arange(1 << 16, dtype=np.uint16).view(NARROW[narrow])
    f, plain = (symdnn.function([x], CHOSEN[name](x), mode=m) for m in (CPU, "FAST_COMPILE"))
    with config.change_flags(**{"cpu.compile": "always"}), np.errstate(all="ignore"):
        same(f(values), plain(values))


def test_a_chosen_bfloat16_is_not_rounded():
    x = T.vector("x", dtype="bfloat16")

    def rounds(y):
        program = elementwise_program(x, y)
        printer = Printer(program)
        printer.emit([f"%x{k}" for k in range(len(program.inputs))])
        return "narrow_bfloat16" in printer.helpers

    assert not any(rounds(make(x)) for make in CHOSEN.values())
    assert all(rounds(y) for y in (x * 0.5, T.exp(x), T.maximum(x * x, x)))


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.usefixtures("way")
def test_all_numbers_are_widened_exactly(narrow, wide):
    values = np.arange(1 << 16, dtype=np.uint16).view(NARROW[narrow])
    same(converted(narrow, wide, values), values.astype(wide))


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.usefixtures("way")
def test_numbers_are_rounded_once(narrow, wide, rng):
    every = np.arange(1 << 16, dtype=np.uint16).view(NARROW[narrow]).astype(wide)
    with np.errstate(all="ignore"):
        middle = (every[:-1] / 2 + every[1:] / 2).astype(wide)
        near = [np.nextafter(middle, wide_limit).astype(wide) for wide_limit in (-np.inf, np.inf)]
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32).astype(wide)
    scattered = rng.normal(size=200_000) * 2.0 ** rng.integers(-30, 20, 200_000)
    values = np.concatenate([every, middle, *near, bits, scattered.astype(wide)]).astype(wide)
    with np.errstate(all="ignore"):
        same(converted(wide, narrow, values), values.astype(NARROW[narrow]))


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("other", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_integers_become_narrow_and_narrow_become_integers(narrow, other, rng):
    whole = rng.integers(0, 100, 5000).astype(other)
    same(converted(other, narrow, whole), whole.astype(np.float32).astype(NARROW[narrow]))
    floats = (rng.normal(size=5000) * 40).astype(NARROW[narrow])
    floats = np.abs(floats) if other.startswith("u") else floats
    same(converted(narrow, other, floats), floats.astype(np.float32).astype(other))


@pytest.mark.parametrize("narrow", NARROW)
def test_one_narrow_dtype_becomes_the_other(narrow):
    other = next(n for n in NARROW if n != narrow)
    values = np.arange(1 << 16, dtype=np.uint16).view(NARROW[narrow])
    with np.errstate(all="ignore"):
        same(converted(narrow, other, values), values.astype("f4").astype(NARROW[other]))


# -- nothing of 16 bits is computed with ----------------------------------------------------------


@pytest.fixture
def texts(monkeypatch, nothing_compiled):
    """The texts of all kernels that are made; they are not compiled, and do nothing.

    What they would have written is True, or a small number: references read it, an assertion's too.
    """
    fill(1, monkeypatch)
    found = []
    begin = jit.Code.enqueue

    def noted(self, text):
        found.append(text)
        if self._name.startswith("kernel_"):
            self._call = ctypes.CFUNCTYPE(None, *self._types)(lambda *_: None)
        else:
            begin(self, text)

    monkeypatch.setattr(jit.Code, "enqueue", noted)
    return found


def of_16_bits(text):
    """What of a text, before and after LLVM's passes, has more than conversions in 16 bits."""
    compiler = jit._compiler()
    module = compiler.llvm.parse_assembly(text)
    module.verify()
    if not text.startswith(jit.SKIP_PASSES):
        compiler._optimise(module, compiler.machine)
    names = r"[%@](?!llvm\.masked\.)[-\w.]+"
    lines = (text + str(module)).splitlines()
    lines = [re.sub(names, "", line) for line in lines if PRODUCTS not in line]
    found = [line for line in lines if re.search(r"\b(half|bfloat)\b|\b0x[HR]", line)]
    moves = (MOVES, PAIRS) if PRODUCTS in text else (MOVES,)
    return [line for line in found if not any(m.match(line) for m in moves)]


#: The instruction that adds exact products of pairs of bfloat16 in float32, and how it gets them.
PRODUCTS = "@llvm.x86.avx512bf16.dpbf16ps"
PAIRS = re.compile(
    r" *= (bitcast|load)\b.*<\d+ x bfloat>| *store <\d+ x bfloat>"
    r"|(declare| *= (tail )?call) <\d+ x bfloat> \(<\d+ x float>"
)
#: What may be done with float16: it is read, chosen, written, converted.
MOVES = re.compile(
    r" *(= )?(bitcast|fpext|fptrunc|load|store|select|phi|getelementptr)\b(?!.*\bbfloat\b)"
    r"| *= ((insert|extract)element|shufflevector)\b(?!.*\bbfloat\b)"
    r"|(declare| *(= )?(tail )?call) .*@llvm\.masked\.(load|store)\.(?!.*\bbfloat\b)"
)


#: One case of each op.
OPS = {op: case for case in reversed(CASES) for op in case.ops}
FIRST = list({case.id: case for case in OPS.values()}.values())


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("case", sampled(FIRST, every=4), ids=lambda c: c.id)
def test_no_op_computes_in_16_bits(case, narrow, texts):
    given = draw(case, 31)
    arrays = [a.astype(NARROW[narrow]) if a.dtype.kind == "f" else a for a in given]
    if all(a is b for a, b in zip(arrays, given)):
        pytest.skip("it has no floats")
    vs = variables(case, arrays)
    try:
        outs = [o for o in outputs(case, vs) if isinstance(o.type, TensorType)]
    except (symdnn.errors.SymdnnError, TypeError) as error:
        pytest.skip(f"it takes no {narrow}: {error}")
    with config.change_flags({"cpu.compile": "always"}), np.errstate(all="ignore"):
        f = symdnn.function(vs, outs, mode=CPU, on_unused_input="ignore")
        f.trust_input = True
        with suppress(symdnn.errors.IndexOutOfRange):  # of indices that a kernel did not write
            f(*arrays)
    for text in texts:
        assert of_16_bits(text) == []


def test_the_search_finds_what_it_is_for():
    text = """
    define half @f(half %half, i16 %b, i1 %c) {
      %wide = fpext half %half to float
      %y = OP
      ret half %y
    }
    """
    assert of_16_bits(text.replace("OP", "fadd half %half, 0xH3C00"))
    assert of_16_bits(text.replace("OP", "fmul half %half, %half"))
    assert of_16_bits(text.replace("half", "bfloat").replace("OP", "fptrunc float %wide to bfloat"))
    moved = "%twice = fadd float %wide, %wide\n%y = fptrunc float %twice to half"
    assert of_16_bits(text.replace("%y = OP", moved))  # by LLVM, to an addition in 16 bits


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("name", ["selu", "log10", "comparisons", "reduced"])
def test_chains_that_llvm_would_narrow(name, narrow, texts):
    x = T.TensorType(narrow, (None,))("x")
    made = {
        "selu": lambda: T.selu(x) * 2,
        "log10": lambda: T.log10(T.exp2(T.clip(x * x, -4, 4)) + 1) * 2 + 1,
        "comparisons": lambda: T.switch(T.maximum(-x, abs(x)) < x + x, x, T.sqrt(x)),
        "reduced": lambda: T.max(T.switch(x < 0, x + 1, x)) + (x * x).sum(),
    }[name]()
    with config.change_flags({"cpu.compile": "always"}):
        symdnn.function([x], made, mode=CPU)(np.ones(100, NARROW[narrow]))
    assert texts
    for text in texts:
        assert of_16_bits(text) == []
