"""The files of a profile: a table, JSON, a trace and stacks; each node with what ran it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import Function, Mode, function
from symdnn.errors import OptionError


def profiled(mode: Mode | None = None, calls: int = 3) -> Function:
    x, w = T.ftensor4("x"), T.ftensor4("w")
    f = function([x, w], T.exp(T.nnet.conv2d(x, w)).sum(), profile=True, name="net", mode=mode)
    for _ in range(calls):
        f(np.ones((2, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32"))
    f.profile.shown = True
    return f


def rows(f: Function, folder: Path) -> list[dict[str, Any]]:
    f.profile.save(folder / "p.json")
    found = json.loads((folder / "p.json").read_text())
    assert (found["name"], found["calls"]) == ("net", 3)
    assert found["seconds"] == f.profile.seconds
    return found["nodes"]


def assert_files_agree(f: Function, folder: Path) -> None:
    nodes = rows(f, folder)
    assert [n["seconds"] for n in nodes] == sorted((n["seconds"] for n in nodes), reverse=True)
    known = {c.kernel.name for p in f.plans() for c in p.specialised.choices.values()}
    assert {n["kernel"] for n in nodes} <= known
    used = {str(r.node.op): r.use.used for r in f.dnn_report().rows}
    assert used
    assert {n["node"]: n["algorithm"] for n in nodes if n["algorithm"]} == used

    f.profile.save(folder / "p.trace.json")
    call, *steps = json.loads((folder / "p.trace.json").read_text())["traceEvents"]
    assert call["name"] == "net"
    assert sorted(s["name"] for s in steps) == sorted(n["node"] for n in nodes)
    ends = [0.0]
    for s in steps:
        assert s["ph"] == "X"
        assert s["ts"] >= ends[-1] - 1e-3  # one after the other, inside of the call
        ends.append(s["ts"] + s["dur"])
    assert ends[-1] <= call["dur"] + 1e-3
    assert {s["args"]["algorithm"] for s in steps} - {""} == set(used.values())

    f.profile.save(folder / "p.folded")
    stacks = [n.rpartition(" ") for n in (folder / "p.folded").read_text().splitlines()]
    assert sum(int(n) for _, _, n in stacks) == pytest.approx(
        sum(n["seconds"] for n in nodes) * 1e6, abs=len(stacks)
    )
    for stack, _, _ in stacks:
        first, *lines, op = stack.split(";")
        assert first == "net"
        assert any(n.startswith("test_profile_files.py:") and "profiled" in n for n in lines)
        assert any(op.startswith(n["node"]) for n in nodes)
    for algorithm in used.values():
        assert any(s.endswith(f"[{algorithm}]") for s, _, _ in stacks)
        assert f"({algorithm})" in f.profile.text()

    f.profile.save(folder / "p.svg")
    picture = ElementTree.parse(folder / "p.svg").getroot()
    tips = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert tips[0].startswith("net: ")
    assert tips[0].endswith(" 100.0 %")
    seen = [n["node"] for n in nodes if n["seconds"] > 1e-3 * sum(n["seconds"] for n in nodes)]
    assert all(any(name in tip for tip in tips) for name in seen)

    f.profile.save(folder / "p.txt")
    assert (folder / "p.txt").read_text() == f.profile.text() + "\n"


@pytest.mark.cpu
def test_all_files_tell_the_same(tmp_path: Path) -> None:
    assert_files_agree(profiled(), tmp_path)


@pytest.mark.gpu
def test_on_a_card(tmp_path: Path) -> None:
    f = profiled(Mode(target="cuda"))
    assert any(n["algorithm"] for n in rows(f, tmp_path))
    assert_files_agree(f, tmp_path)


def test_kernels_of_several_plans_are_named(tmp_path: Path) -> None:
    f = profiled()
    before = {n.kernel for n in f.profile.nodes.values()}
    f(np.ones((1, 3, 9, 9), "float32"), np.ones((4, 3, 3, 3), "float32"))
    after = {n.kernel for n in f.profile.nodes.values()}
    assert all(before)
    assert before <= {k for kernels in after for k in (kernels, *kernels.split(" | "))}
    f.free()
    f(np.ones((1, 3, 9, 9), "float32"), np.ones((4, 3, 3, 3), "float32"))
    assert {k.partition(" | ")[0] for k in after} >= {k.kernel for k in f.profile.nodes.values()}
    assert f.profile.calls == 5


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"wanted a name \*\.trace\.json, .* got .*p\.png"):
        profiled(calls=1).profile.save(tmp_path / "p.png")
    assert not list(tmp_path.iterdir())
