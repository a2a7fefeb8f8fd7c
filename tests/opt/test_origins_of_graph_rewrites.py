"""Nodes that rewrites of whole graphs make have the line of what they stand for or feed."""

from __future__ import annotations

import inspect

import symdnn.tensor as T
from symdnn import Mode, config, function
from symdnn.graph.fgraph import FunctionGraph
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu


def line_before() -> int:
    return inspect.currentframe().f_back.f_lineno - 1  # type: ignore[union-attr]


def transfers(fgraph: FunctionGraph) -> dict[type, tuple[str, int]]:
    made = [n for n in fgraph.nodes if isinstance(n.op, GpuFromHost | HostFromGpu)]
    return {type(n.op): n.origin.lines[0][:2] for n in made}


def test_a_transfer_has_the_line_of_the_value_or_else_of_its_reader() -> None:
    x = T.fmatrix("x")
    y = T.dot(x, x)
    line = line_before()
    f = function([x], y, mode=Mode(target="cuda:sm_90"))
    assert transfers(f.fgraph) == {
        GpuFromHost: (__file__, line),
        HostFromGpu: (__file__, line),
    }


def test_without_origins_nothing_is_kept() -> None:
    with config.change_flags({"traceback.limit": 0}):
        x = T.fmatrix("x")
        f = function([x], T.dot(x, x), mode=Mode(target="cuda:sm_90"))
    assert {str(n.origin) for n in f.fgraph.nodes} == {"(origin unknown)"}
