"""Graphs of cuDNN that have nothing to do with convolutions: what another family needs."""

from __future__ import annotations

import ast
import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph import GraphBuilder, GraphForm, launch, new_graph, plans
from symdnn.gpu.cudnn.graph_plan import GraphPlan, Limits
from tests.gpu.fake_frontend import Engine, Note, fake_frontend  # noqa: F401
from tests.gpu.with_cudnn import real_cudnn, real_frontend  # noqa: F401

HANDLE = 7


def rows(*shape: int) -> tuple[int, ...]:
    """Strides without gaps."""
    found = [1]
    for n in shape[:0:-1]:
        found.insert(0, found[0] * n)
    return tuple(found)


@dataclass(frozen=True)
class Scaled(GraphForm):
    """``scale * (a @ b)``, batched."""

    a: tuple[int, int, int]
    b: tuple[int, int, int]
    dtype: str = "float16"
    scale: float = 0.5
    excluded: str = "TENSOR_CORE"

    @property
    def roles(self) -> tuple[str, ...]:
        return "a", "b", "out"

    @property
    def numbers(self) -> Mapping[str, float]:
        return {"scale": self.scale}

    @property
    def limits(self) -> Limits:
        return Limits((self.excluded,))

    def refusal(self) -> str:
        return "" if self.a[2] == self.b[1] else f"{self.a} and {self.b} do not fit"

    def describe(self, graph: GraphBuilder) -> None:
        a = graph.input("a", self.a, rows(*self.a), self.dtype)
        b = graph.input("b", self.b, rows(*self.b), self.dtype)
        out = (self.a[0], self.a[1], self.b[2])
        found = graph.virtual(graph.add("matmul", A=a, B=b), out, rows(*out))
        scaled = graph.add("mul", a=found, b=graph.number("scale", 3))
        graph.output(scaled, "out", out, rows(*out), self.dtype)


FORM = Scaled((4, 8, 16), (4, 16, 32))


@dataclass(frozen=True)
class Attention(GraphForm):
    """``softmax(q @ k.T) @ v`` with the statistics that its gradient reads: two results."""

    shape: tuple[int, int, int, int]

    @property
    def roles(self) -> tuple[str, ...]:
        return "q", "k", "v", "o", "stats"

    def describe(self, graph: GraphBuilder) -> None:
        n, h, s, _ = self.shape
        q, k, v = (graph.input(r, self.shape, rows(*self.shape), "bfloat16") for r in "qkv")
        o, stats = graph.add("sdpa", name="sdpa", q=q, k=k, v=v, generate_stats=True)
        graph.output(o, "o", self.shape, rows(*self.shape), "bfloat16")
        graph.output(stats, "stats", (n, h, s, 1), rows(n, h, s, 1), "float32")


# --- plans and launches, by the fake --------------------------------------------------------------


def test_plans_and_a_launch_of_any_form(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, notes=(Note.TENSOR_CORE,)), Engine(2, workspace=64))
    (record,), why = plans(FORM, HANDLE)
    assert (record.engine, record.workspace_bytes, why) == (2, 64, "")
    made = launch(FORM, record, HANDLE)
    made(HANDLE, {"a": 16, "b": 32, "out": 48}, 256)
    pack, workspace, name, handle = made._graph.ran[-1]
    assert {uid: pack[uid] for uid in (1, 2, 3)} == {1: 16, 2: 32, 3: 48}
    assert ctypes.c_float.from_address(pack[4]).value == 0.5
    assert (workspace, name, handle) == (256, "eng2_TILE_SIZE=2", HANDLE)
    assert len(fake_frontend.made) == 2  # what was listed is launched


def test_forms_are_the_keys_of_plannings(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1, workspace=9),)
    assert plans(FORM, HANDLE)[0]
    assert plans(Scaled((4, 8, 16), (4, 16, 32)), HANDLE)[0]
    assert len(fake_frontend.made) == 2  # the equal form was planned already
    limited = Scaled((4, 8, 16), (4, 16, 32), excluded="DOWN_CONVERT_INPUTS")
    plans(limited, HANDLE)
    plans(Attention((2, 4, 8, 16)), HANDLE)
    assert [form for form, _ in graph._recent] == [limited, Attention((2, 4, 8, 16))]


@pytest.mark.usefixtures("fake_frontend")
def test_a_form_refuses_before_anyone_is_asked():
    wrong = Scaled((4, 8, 16), (4, 8, 32))
    assert plans(wrong, HANDLE) == ([], "(4, 8, 16) and (4, 8, 32) do not fit")


def test_off(monkeypatch):
    monkeypatch.setattr(frontend, "unavailable", lambda: "no package")
    assert plans(FORM, HANDLE) == ([], "the graph API is off: no package")
    with pytest.raises(CudnnError, match="graph API is off: no package"):
        launch(FORM, GraphPlan(1, (), "eng1", 0, True), HANDLE)


def test_a_pointer_that_is_not_aligned(fake_frontend):  # noqa: F811
    fake_frontend.engines = (Engine(1),)
    (record,), _ = plans(FORM, HANDLE)
    with pytest.raises(CudnnArgumentError, match="wanted out at a multiple of 16 bytes, got 0x31"):
        launch(FORM, record, HANDLE)(HANDLE, {"a": 16, "b": 32, "out": 49}, 0)


# --- the graph, by the frontend itself ------------------------------------------------------------


@pytest.mark.usefixtures("real_frontend")
def test_a_product_that_is_scaled():
    found = json.loads(str(new_graph(FORM, None)))
    assert [n.get("mode", n["tag"]) for n in found["nodes"]] == ["MATMUL", "MUL"]
    tensors = {t["uid"]: t for t in found["tensors"]}
    assert [(tensors[i]["name"], tensors[i]["dim"]) for i in (1, 2)] == [
        ("a", [4, 8, 16]), ("b", [4, 16, 32]),
    ]  # fmt: skip
    assert (tensors[3]["dim"], tensors[3]["data_type"]) == ([4, 8, 32], "HALF")
    assert tensors[4]["is_pass_by_value"]
    (between,) = (t for t in found["tensors"] if t["is_virtual"])
    assert (between["data_type"], between["stride"]) == ("FLOAT", [256, 32, 1])


@pytest.mark.usefixtures("real_frontend")
def test_attention_with_two_results():
    found = json.loads(str(new_graph(Attention((2, 4, 64, 32)), None, (9, 0))))
    assert "SDPA" in found["nodes"][0]["tag"]
    tensors = {t["uid"]: t for t in found["tensors"]}
    assert [tensors[i]["dim"] for i in range(1, 6)] == [[2, 4, 64, 32]] * 4 + [[2, 4, 64, 1]]
    assert tensors[5]["data_type"] == "FLOAT"


@pytest.mark.usefixtures("real_frontend")
def test_an_operation_that_the_frontend_lacks():
    @dataclass(frozen=True)
    class Unknown(Attention):
        def describe(self, graph: GraphBuilder) -> None:
            graph.add("nonesuch")

    with pytest.raises(CudnnError, match=r"has no operation 'nonesuch'; update it \(pip install"):
        new_graph(Unknown((1, 1, 1, 1)), None)


# --- the arrows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [graph, graph.Planning])
def test_nothing_of_convolution_is_imported(module):
    """Nor named: another family builds graphs without the room of convolutions."""
    name = module.__name__ if module is graph else module.__module__
    path = Path(graph.__file__).with_name(name.rpartition(".")[2] + ".py")
    text = path.read_text(encoding="utf-8")
    imported = [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    assert not [line for line in imported if "gpu.conv" in line]
    assert "conv" not in text.lower()
