"""The kernel contract: what every kernel is, what it says without sizes, its place in the table."""

import inspect
import re
from pathlib import Path

import pytest

import symdnn
from symdnn.cli import main
from symdnn.compile.execute.targets import load_kernels
from symdnn.errors import SymdnnError
from symdnn.graph import kernel as module
from symdnn.graph.kernel import FOREIGN, Call, Kernel, kernels_for, register_kernel, table
from symdnn.graph.op import Op
from symdnn.graph.origin import Hints
from symdnn.graph.target import Target
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise.math import Exp
from tests.forked import forked
from tests.op_table import of_each
from tests.test_op_table import CASES, concrete_ops, draw, outputs, variables

KINDS = ("cpu", "cuda")
ROOT = Path(symdnn.__file__).parent
for _kind in KINDS:
    load_kernels(Target(_kind))


def every_kernel(kind):
    found = [k for op in [*concrete_ops(), Op] for k in kernels_for(op, kind)]
    return list({id(k): k for k in found}.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_is_one_of_the_contract(kind):
    for k in every_kernel(kind):
        assert isinstance(k, Kernel), k
        assert k.name, k
        assert k.traits is not FOREIGN, f"declare traits in {type(k)}"
        with pytest.raises(AttributeError):
            k.traits.backend = "other"
        defined = {n for n in vars(type(k)) if not n.startswith("_")}
        same = [n for n in defined & set(vars(Kernel)) if inspect.isfunction(vars(Kernel)[n])]
        for name in same:  # called as the contract says
            wanted = inspect.signature(vars(Kernel)[name]).parameters
            given = inspect.signature(vars(type(k))[name]).parameters
            assert list(given)[: len(wanted)] == list(wanted), (type(k), name)


@of_each(CASES)
def test_no_kernel_needs_sizes_to_be_asked(case):
    """With what the types of a graph say, and with less."""
    for node in toposort(outputs(case, variables(case, draw(case)))):
        for inputs, outs in (
            ([v.type for v in node.inputs], [v.type for v in node.outputs]),
            (list(map(unsized, node.inputs)), list(map(unsized, node.outputs))),
        ):
            call = Call(node.op, tuple(inputs), tuple(outs), Hints())
            for kind in KINDS:
                for k in kernels_for(type(node.op), kind):
                    assert isinstance(k.refuses(call), str | None), k.name


def unsized(v):
    t = v.type
    return TensorType(t.dtype, (None,) * t.ndim) if isinstance(t, TensorType) else t


def test_nobody_guesses_what_a_kernel_has():
    """No getattr or hasattr on a kernel, no reading of its name."""
    asked = r"\b(?:get|has)attr\(\s*(?:(?:choice\.|self\.)?kernel|k|found)\s*,"
    read = r"\b(?:kernel|k)\.name\.startswith\("
    guess = re.compile(f"{asked}|{read}")
    assert guess.search("hasattr(choice.kernel, 'x')")
    assert guess.search("self.kernel.name.startswith('x')")
    assert not guess.search("getattr(kernels, 'x')")
    wrong = [
        f"{path}: {found[0]}"
        for path in ROOT.rglob("*.py")
        if path != Path(module.__file__)
        for found in guess.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


# --- the table ------------------------------------------------------------------------------------


class Plain(Kernel):
    def __init__(self, name):
        self.name = name


class Mine(Op):
    """An op for this file."""


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(module, "_table", {})
    return lambda: [k.name for k in kernels_for(Mine, "cpu") if k.name != "numpy.reference"]


def test_order_is_preference(rows):
    for name in ("a", "b"):
        register_kernel(Mine, "cpu", Plain(name))
    register_kernel(Mine, "cpu", Plain("first"), before="a")
    register_kernel(Mine, "cpu", Plain("between"), after="a")
    register_kernel(Mine, "cpu", Plain("last"), after="b")
    assert rows() == ["first", "a", "between", "b", "last"]
    assert ("Mine", ("first", "a", "between", "b", "last")) in table("cpu")


def test_a_wrong_place_is_refused(rows):
    register_kernel(Mine, "cpu", Plain("a"))
    with pytest.raises(SymdnnError, match=r"no 'z' among the cpu kernels of Mine: a"):
        register_kernel(Mine, "cpu", Plain("b"), before="z")
    with pytest.raises(SymdnnError, match="wanted before or after, got both"):
        register_kernel(Mine, "cpu", Plain("b"), before="a", after="a")
    with pytest.raises(SymdnnError, match=r"kernel a for Mine is registered already"):
        register_kernel(Mine, "cpu", Plain("a"))
    assert rows() == ["a"]


def test_a_targets_own_kernels_are_there_before_any_function_is_made():
    script = """
from symdnn.graph.kernel import Kernel, kernels_for, register_kernel
from symdnn.ops.nn.softmax import Softmax
first, last = Kernel(), Kernel()
first.name, last.name = "first", "last"
register_kernel(Softmax, "cpu", last)
register_kernel(Softmax, "cpu", first, before="llvm.rows")
print(*(k.name for k in kernels_for(Softmax, "cpu")))
"""
    done = forked(script)
    own = ["llvm.rows", "llvm.bands", "llvm.turned_rows"]
    assert done.stdout.split() == ["first", *own, "last", "numpy.reference"]


class Outside:
    """A kernel by its methods alone."""

    name = "theirs.exp"

    def refuses(self, call):
        return "it is large" if call.inputs[0].shape[0] > 9 else None

    def workspace_bytes(self, call):
        return 64

    def capturable(self, call):
        return False

    def bind(self, call):
        return lambda inputs, outputs: None


def test_a_kernel_from_outside_is_wrapped(rows):
    register_kernel(Exp, "cpu", Outside())
    (k,) = [k for k in kernels_for(Exp, "cpu") if k.name == "theirs.exp"]
    small, large, unknown = (
        Call(Exp(), (TensorType("float32", (n,)),), (TensorType("float32", (n,)),), Hints())
        for n in (4, 10, None)
    )
    assert (k.refuses(small), k.refuses(large), k.refuses(unknown)) == (None, "it is large", None)
    assert (k.workspace_bytes(small), k.capturable(small), k.traits) == (64, False, FOREIGN)
    assert k.bind(small)([], []) is None
    assert k.settled(small) is k
    assert (k.writes_updates(small), k.never_fails(small), k.library_use(small)) == (
        False,
        False,
        None,
    )


def test_what_a_kernel_from_outside_offers_is_asked_for(rows):
    class Offering(Outside):
        begun = []

        def accepts(self, index, array):
            return index == 0

        def begin(self, call):
            self.begun.append(call)

    for kernel in (Offering(), Outside()):
        wrapped = module._OutsideKernel(kernel)
        offers = isinstance(kernel, Offering)
        assert (wrapped.reads_any_layout, wrapped.begins) == (not offers, offers)
    k = module._OutsideKernel(Offering())
    assert (k.accepts(0, None), k.accepts(1, None)) == (True, False)
    k.begin("call")
    assert Offering.begun == ["call"]


def test_a_mistake_of_a_kernel_from_outside_is_no_answer(rows):
    class Broken(Outside):
        def refuses(self, call):
            raise TypeError("a mistake")

    register_kernel(Exp, "cpu", Broken())
    (k,) = [k for k in kernels_for(Exp, "cpu") if k.name == "theirs.exp"]
    known = TensorType("float32", (4,))
    with pytest.raises(TypeError, match="a mistake"):
        k.refuses(Call(Exp(), (known,), (known,), Hints()))


def test_the_command_prints_the_table(capsys):
    assert main(["kernels", "OneDnnPool"]) == 0
    assert "llvm.pool_last, llvm.pool, onednn.pool" in capsys.readouterr().out
    assert main(["kernels", "GpuDnnSoftmax", "--target", "cuda"]) == 0
    assert "cuda.softmax, cudnn.softmax, cudnn.on_host" in capsys.readouterr().out
    assert main(["kernels", "nothing"]) == 2
    assert "no op whose name has 'nothing'" in capsys.readouterr().err
