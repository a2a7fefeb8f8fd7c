"""A profile as data: JSON rows, a trace of one call for Chrome, stacks and their flame graph."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symdnn.compile.report.flame_graph import flame_graph
from symdnn.errors import OptionError

if TYPE_CHECKING:
    from symdnn.compile.report.profile import FunctionProfile, NodeProfile


def rows(profile: FunctionProfile) -> dict[str, Any]:
    """The whole profile as JSON values; times in seconds, nodes from the most expensive."""
    slowest = sorted(profile.nodes.values(), key=lambda n: -n.seconds)
    nodes = [
        {
            "op": type(n.node.op).__name__, "node": str(n.node.op), "line": str(n.node.origin),
            "module": n.node.origin.module, "kernel": n.kernel, "algorithm": n.algorithm,
            "calls": n.calls, "seconds": n.seconds, "bytes_moved": n.bytes_moved,
        }
        for n in slowest
    ]  # fmt: skip
    return {
        "name": profile.name, "calls": profile.calls, "seconds": profile.seconds, "nodes": nodes,
    }  # fmt: skip


def chrome_trace(profile: FunctionProfile) -> dict[str, Any]:
    """The last call in the Trace Event Format of Chrome and Perfetto; times in microseconds."""
    common = {"ph": "X", "pid": 0, "tid": 0}
    events: list[dict[str, Any]] = [
        {
            **common, "name": str(node.op), "cat": type(node.op).__name__, "ts": begin * 1e6,
            "dur": seconds * 1e6, "args": _arguments(profile.nodes[node]),
        }
        for node, begin, seconds in profile.timeline
    ]  # fmt: skip
    call = {**common, "name": profile.name, "cat": "call", "ts": 0.0}
    call["dur"] = profile.last_seconds * 1e6
    return {"traceEvents": [call, *events], "displayTimeUnit": "ms"}


def _arguments(n: NodeProfile) -> dict[str, str]:
    return {"kernel": n.kernel, "algorithm": n.algorithm, "line": str(n.node.origin)}


def stacks(profile: FunctionProfile) -> dict[tuple[str, ...], float]:
    """Seconds by stack: function, the user's lines from the outermost, modules, op."""
    total: dict[tuple[str, ...], float] = {}
    for n in profile.nodes.values():
        lines = [
            f"{os.path.basename(f)}:{i} {name}" for f, i, name in reversed(n.node.origin.lines)
        ]
        algorithm = f" [{n.algorithm or n.kernel}]" if n.algorithm or n.kernel else ""
        modules = filter(None, n.node.origin.module.split("."))
        stack = (profile.name, *lines, *modules, f"{n.node.op}{algorithm}")
        total[stack] = total.get(stack, 0.0) + n.seconds
    return total


def folded(profile: FunctionProfile) -> str:
    """Collapsed stacks with whole microseconds, for speedscope, Perfetto and ``flamegraph.pl``."""
    lines: dict[str, float] = {}
    for stack, seconds in stacks(profile).items():
        line = ";".join(f.replace(";", ",").replace("\n", " ") for f in stack)
        lines[line] = lines.get(line, 0.0) + seconds
    return "".join(f"{line} {round(s * 1e6)}\n" for line, s in lines.items())


#: How each kind of file is written, by the end of its name; the first that fits is taken.
FORMATS: Mapping[str, Callable[[FunctionProfile], str]] = {
    ".trace.json": lambda profile: json.dumps(chrome_trace(profile)),
    ".json": lambda profile: json.dumps(rows(profile), indent=1),
    ".folded": folded,
    ".svg": lambda profile: flame_graph(stacks(profile)),
    ".txt": lambda profile: profile.text() + "\n",
}


def write(profile: FunctionProfile, path: str | Path) -> None:
    """Write ``profile`` in the format that the end of the name says."""
    for end, text_of in FORMATS.items():
        if str(path).endswith(end):
            Path(path).write_text(text_of(profile), encoding="utf-8")
            return
    raise OptionError(f"the file of a profile: wanted a name *{', *'.join(FORMATS)}, got {path}")
