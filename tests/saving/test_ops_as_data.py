"""Every op of the op table as data: written, read, and equal; what is no data is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import FileFormatError, InputError
from symdnn.graph.op import Op
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.ops.core.gradient_control import Print
from symdnn.saving.graphs import Reader, Writer
from tests.op_table import of_each
from tests.test_op_table import CASES, draw, outputs, variables


def read_again(inputs, outs):
    """A graph that was written as JSON, and read."""
    writer = Writer()
    graph = writer.graph(inputs, outs)
    parts = {"ops": writer.ops, "constants": writer.constants, "shared": writer.shared_entries()}
    graph, parts = json.loads(json.dumps([graph, parts], allow_nan=False))
    return Reader(parts, writer.arrays, "a file").graph(graph)


@of_each(CASES)
def test_an_op_is_data(case) -> None:
    vs = variables(case, draw(case))
    outs = outputs(case, vs)
    inputs, found = read_again(vs, outs)
    assert [v.type for v in inputs] == [v.type for v in vs]
    for new, old in zip(toposort(found), toposort(outs), strict=True):
        assert new.op == old.op.portable()
        assert [v.type for v in new.outputs] == [v.type for v in old.outputs]


def test_a_python_function_is_refused():
    x = T.fvector("x")
    with pytest.raises(InputError, match="Print.*function.*no data"):
        Writer().graph([x], [Print("here", function=lambda op, v: None)(x)])
    with pytest.raises(InputError, match="Print of tofile: in a file, wanted of .*shape"):
        Writer().graph([x], [Print("here", ("tofile",))(x)])


@dataclass(frozen=True)
class Scaled(Op):
    """A user's op."""

    saved_version: ClassVar[int] = 2
    factor: float = 1.0

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x):
        return (self.factor * x).astype(x.dtype)

    @classmethod
    def upgraded(cls, version, fields):
        return {"factor": 1 / fields["divisor"]}  # of version 1


@dataclass(frozen=True)
class Unknown(Scaled):
    """A user's op that nobody has registered."""


def test_a_users_op(tmp_path):
    symdnn.saved_op(name="tests.Scaled")(Scaled)
    x = T.fvector("x")
    f = symdnn.function([x], Scaled(2.5)(x))
    symdnn.save(f, tmp_path / "f")
    np.testing.assert_array_equal(symdnn.load(tmp_path / "f")([1, 2]), f([1, 2]))
    with pytest.raises(InputError, match=r"test_ops_as_data.Unknown.*symdnn.saved_op"):
        symdnn.save(symdnn.function([x], Unknown(2.5)(x)), tmp_path / "g")
    with pytest.raises(InputError, match="taken|already"):
        symdnn.saved_op(name="Softmax")(Scaled)
    with pytest.raises(InputError, match="wanted the class of an op"):
        symdnn.saved_op(dict)


def read_op(**entry):
    empty = {"constants": [], "shared": []}
    return Reader({**empty, "ops": [entry]}, {}, "a file").ops[0]


def test_versions_of_an_op():
    symdnn.saved_op(name="tests.Scaled")(Scaled)
    assert read_op(op="tests.Scaled", version=1, fields={"divisor": 4.0}) == Scaled(0.25)
    assert read_op(op="tests.Scaled", version=2, fields={"factor": 4.0}) == Scaled(4.0)
    assert read_op(op="tests.Scaled", version=2, fields={}) == Scaled(1.0)  # added with a default
    with pytest.raises(ValueError, match="version 3, known is 2"):
        read_op(op="tests.Scaled", version=3, fields={"factor": 4.0})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"op": "os.system", "fields": {}}, "knows no op 'os.system'"),
        ({"op": "Op", "fields": {}}, "knows no op"),
        ({"op": "Elemwise", "fields": {}}, "knows no op"),
        ({"op": "Sum", "fields": {"axes": [0], "colour": 1}}, "no field colour"),
        ({"op": "Sum", "fields": {"axes": ["0"]}}, "as its axes"),
        ({"op": "Sum", "fields": {"axes": [True]}}, "as its axes"),
        ({"op": "Sum", "fields": {"axes": [2**70]}}, "64 bits"),
        ({"op": "Cast", "fields": {"dtype": "float32; x"}}, "as? .*dtype"),
        ({"op": "Print", "fields": {"attrs": ["tofile"]}}, "tofile"),
        ({"op": "Print", "fields": {"function": {"op": "Exp", "fields": {}}}}, "function"),
        ({"struct": "Path", "fields": {}}, "no known kind"),
        ({"float": "inf"}, "none"),
    ],
)
def test_what_no_op_can_be_is_refused(entry, words):
    with pytest.raises((ValueError, InputError), match=words):
        read_op(**entry)


def test_a_scalar_program_is_checked():
    step = {"struct": "Instruction", "fields": {"name": "add", "args": [0, 7], "dtype": "float32"}}
    fields = {"inputs": ["float32"], "body": [step], "outputs": [1]}
    program = {"struct": "ScalarProgram", "fields": fields}
    with pytest.raises(ValueError, match="add of"):
        read_op(op="FusedElemwise", fields={"program": program})


def test_a_later_format_says_so(tmp_path):
    from symdnn.saving import container, functions

    x = T.fvector("x")
    contents = functions.contents_of(symdnn.function([x], x + 1))
    contents.document["version"] = functions.VERSION + 1
    (tmp_path / "f").write_bytes(container.pack(contents))
    with pytest.raises(FileFormatError, match=r"version 2, this symdnn reads up to 1; update"):
        symdnn.load(tmp_path / "f")
