"""Times of a function's steps: ``function(..., profile=True)``, or the flag ``profile``."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.mode import Watch
from symdnn.compile.report import profile_files
from symdnn.config import config
from symdnn.graph.runtime import COMPILE_CLOCK
from symdnn.graph.variable import Apply
from symdnn.opt.engine import RewriteProfile


@dataclass
class NodeProfile:
    """The cost of one node: calls, seconds in all of them, bytes read and written.

    ``kernel`` runs it, with the ``algorithm`` that a library chose; ``|`` stands between those of
    several plans.
    """

    node: Apply
    calls: int = 0
    seconds: float = 0.0
    bytes_moved: int = 0
    kernel: str = ""
    algorithm: str = ""


@dataclass
class FunctionProfile:
    """Times of one function: of whole calls and of each node that ran as a step.

    Views and integers of the host program are no steps. Where a step's first launch waits for its
    kernel to be compiled, that time is ``compile_seconds`` and not the step's. What is left of a
    call's time is shown as overhead.
    """

    name: str
    calls: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    nodes: dict[Apply, NodeProfile] = field(default_factory=dict)
    rewrites: RewriteProfile | None = None
    shown: bool = False
    #: The steps of the last call in order: node, start after that of the call, duration (seconds).
    timeline: list[tuple[Apply, float, float]] = field(default_factory=list)
    last_seconds: float = 0.0
    #: When the last call began, on the clock of :func:`time.perf_counter`.
    began: float = 0.0

    # What programs for Theano read of a profile, by its names.
    fct_callcount = property(lambda self: self.calls)
    fct_call_time = property(lambda self: self.seconds)
    vm_call_time = property(lambda self: sum(n.seconds for n in self.nodes.values()))

    @classmethod
    def of(cls, wanted: object, name: str, rewrites: RewriteProfile) -> FunctionProfile | None:
        """The profile that ``function(profile=wanted)`` asks for; None follows the flag.

        ``rewrites`` says how long compiling took. It is printed when the process ends, unless
        the program has called :meth:`summary` itself.
        """
        if isinstance(wanted, FunctionProfile):
            wanted.rewrites = rewrites
            return wanted
        if not (config.profile if wanted is None else wanted):
            return None
        profile = cls(name, rewrites=rewrites)
        print_at_exit(profile)
        return profile

    def watch(self) -> Watch:
        """A watch that measures one call."""
        return _Timer(self)

    def name_kernels(self, plans: Iterable[Plan]) -> None:
        """Note which kernels, and which algorithms of libraries, run the nodes in ``plans``."""
        found: dict[Apply, tuple[dict[str, None], dict[str, None]]] = {}
        for plan in plans:
            spec = plan.specialised
            for node, choice in spec.choices.items():
                if node in self.nodes:
                    kernels, algorithms = found.setdefault(node, ({}, {}))
                    kernels[choice.kernel.name] = None
                    use = choice.kernel.library_use(spec.call(node))
                    algorithms.update({use.used: None} if use is not None else {})
        for node, (kernels, algorithms) in found.items():
            entry = self.nodes[node]
            entry.kernel, entry.algorithm = " | ".join(kernels), " | ".join(algorithms)

    def save(self, path: str | Path) -> None:
        """Write the profile to a file, in the format that the end of its name says.

        ``.json``: a row for each node. ``.trace.json``: the last call for Chrome's tracing and
        Perfetto. ``.svg``: a flame graph. ``.folded``: its stacks. ``.txt``: the table. Raises
        :class:`~symdnn.errors.OptionError` for another name, and ``OSError``.
        """
        profile_files.write(self, path)

    def summary(self, file: Any = None, limit: int = 20) -> str:
        """The table, most expensive ops first; printed to ``file`` (default: standard error)."""
        text = self.text(limit)
        self.shown = True
        print(text, file=sys.stderr if file is None else file)
        return text

    def text(self, limit: int = 20) -> str:
        """The table as text: a part by op, one by node with the user's line, one by module."""
        inside = sum(n.seconds for n in self.nodes.values())
        rest = self.seconds - inside - self.compile_seconds
        lines = [
            f"Profile of {self.name}: {self.calls} calls, {self.seconds * 1e3:.3f} ms, "
            f"{inside * 1e3:.3f} ms of it in steps, {self.compile_seconds * 1e3:.3f} ms compiling, "
            f"overhead {max(rest, 0) / max(self.calls, 1) * 1e6:.1f} us a call",
            f"{'% time':>7} {'ms':>10} {'us/call':>9} {'calls':>7} {'MB':>9}  op",
        ]
        lines += [_row(*row, inside) for row in self.by_op()[:limit]]
        lines.append(f"{'% time':>7} {'ms':>10} {'us/call':>9} {'calls':>7} {'MB':>9}  node")
        slowest = sorted(self.nodes.values(), key=lambda n: -n.seconds)[:limit]
        for n in slowest:
            by = f" by {n.kernel}" if n.kernel else ""
            by += f" ({n.algorithm})" if n.algorithm else ""
            where = f"{n.node.op}{by}  {n.node.origin}"
            lines.append(_row(where, n.calls, n.seconds, n.bytes_moved, inside))
        lines += self._module_lines(limit, inside)
        if config.profile_memory:
            lines += ["bytes read and written by each call of a node:"]
            lines += [f"{n.bytes_moved // max(n.calls, 1):>12}  {n.node.op}" for n in slowest]
        if config.profile_optimizer and self.rewrites is not None:
            lines += ["compiling:", str(self.rewrites)]
        return "\n".join(lines)

    def by_op(self) -> list[tuple[str, int, float, int]]:
        """(op type, calls, seconds, bytes moved), most expensive first."""
        return self._sums(lambda node: type(node.op).__name__)

    def _sums(self, word: Callable[[Apply], str]) -> list[tuple[str, int, float, int]]:
        """(word of the nodes, calls of them, seconds, bytes), most expensive first."""
        total: dict[str, list[float]] = {}
        for n in self.nodes.values():
            if name := word(n.node):
                entry = total.setdefault(name, [0, 0.0, 0])
                entry[0] += n.calls
                entry[1] += n.seconds
                entry[2] += n.bytes_moved
        rows = [(name, int(e[0]), e[1], int(e[2])) for name, e in total.items()]
        return sorted(rows, key=lambda r: -r[2])

    def by_module(self) -> list[tuple[str, int, float, int]]:
        """(module, calls, seconds, bytes moved), most expensive first; nodes outside are left out.

        A node that a rewrite made of several counts for the module of the last one.
        """
        return self._sums(lambda node: node.origin.module)

    def layers(self, limit: int = 40) -> str:
        """The slowest nodes, each with its module: a layer of a network."""
        inside = sum(n.seconds for n in self.nodes.values())
        slowest = sorted(self.nodes.values(), key=lambda n: -n.seconds)[:limit]
        mean = self.seconds / max(self.calls, 1) * 1e3
        lines = [
            f"{self.name}: {self.calls} calls, {mean:.3f} ms each",
            f"{'% time':>7} {'us/call':>9} {'MB':>8}  layer",
        ]
        for n in slowest:
            module = n.node.origin.module or str(n.node.op)
            by = ", ".join(filter(None, (type(n.node.op).__name__, n.kernel, n.algorithm)))
            calls = max(n.calls, 1)
            lines.append(f"{100 * n.seconds / inside:7.1f} {n.seconds / calls * 1e6:9.1f} "
                         f"{n.bytes_moved / calls / 1e6:8.2f}  {module} ({by})")  # fmt: skip
        if len(self.nodes) > limit:
            rest = inside - sum(n.seconds for n in slowest)
            lines.append(f"{100 * rest / inside:7.1f}  {len(self.nodes) - limit} other nodes")
        return "\n".join(lines)

    def forget(self) -> None:
        """Forget the calls so far: the first ones of a function have its plans made."""
        self.calls, self.seconds, self.compile_seconds = 0, 0.0, 0.0
        self.nodes.clear()

    def _module_lines(self, limit: int, inside: float) -> list[str]:
        rows = self.by_module()[:limit]
        head = f"{'% time':>7} {'ms':>10} {'us/call':>9} {'calls':>7} {'MB':>9}  module"
        return [head, *(_row(*row, inside) for row in rows)] if rows else []

    def __str__(self) -> str:
        return self.text()


def _row(what: str, calls: int, seconds: float, moved: int, total: float) -> str:
    share = 100 * seconds / total if total else 0.0
    each = seconds / max(calls, 1) * 1e6
    return f"{share:7.1f} {seconds * 1e3:10.3f} {each:9.1f} {calls:7d} {moved / 1e6:9.2f}  {what}"


class _Timer(Watch):
    reads_values = False

    def __init__(self, profile: FunctionProfile) -> None:
        self.profile = profile
        self.steps: list[tuple[Apply, float, float]] = []
        self.start = self.begin = time.perf_counter()
        self.compiled = self.compiled_before = COMPILE_CLOCK.seconds

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        now = time.perf_counter()
        if outputs is None:
            self.compiled_before = COMPILE_CLOCK.seconds
            self.begin = time.perf_counter()
            return
        took = now - self.begin if self.device_seconds is None else self.device_seconds
        self.device_seconds = None
        seconds = max(took - (COMPILE_CLOCK.seconds - self.compiled_before), 0.0)
        entry = self.profile.nodes.get(node)
        if entry is None:
            entry = self.profile.nodes[node] = NodeProfile(node)
        entry.calls += 1
        entry.seconds += seconds
        self.steps.append((node, self.begin - self.start, seconds))
        entry.bytes_moved += sum(getattr(a, "nbytes", 0) for a in (*inputs, *outputs))

    def finish(self, results: Sequence[Any]) -> None:
        self.profile.calls += 1
        self.profile.last_seconds = time.perf_counter() - self.start
        self.profile.seconds += self.profile.last_seconds
        self.profile.compile_seconds += COMPILE_CLOCK.seconds - self.compiled
        self.profile.timeline, self.profile.began = self.steps, self.start


_profiles_at_exit: list[FunctionProfile] = []


def print_at_exit(profile: FunctionProfile) -> None:
    """Print the profile when the process ends, unless the program has done so itself."""
    if not _profiles_at_exit:
        atexit.register(_print_all)
    _profiles_at_exit.append(profile)


def _print_all() -> None:
    for profile in _profiles_at_exit:
        if profile.calls and not profile.shown:
            profile.summary()
