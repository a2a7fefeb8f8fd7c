"""Whether one rule changes a graph's values, and for which ops it fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.pattern import makers
from symdnn.graph.target import Target
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant
from symdnn.libraries.table import ALL_RULES as RULES
from symdnn.opt.engine import RewriteProfile, run_rewrites
from symdnn.rewriting.rewrite import Context, Rewrite
from tests.opt.instances import Graph
from tests.seeded import new_rng

CPU = Target("cpu", onednn=(3, 9), isa="AVX512_CORE_BF16")
GPU = Target("cuda", compute_capability=(9, 0), cudnn=(9, 19))
NODE_RULES = [r for r in RULES if isinstance(r, Rewrite)]


@cache
def target_of(rule: Rewrite) -> Target:
    """A target on which the rule may apply."""
    if rule.name == "local_gpudnn_to_neutral":
        return CPU  # where there is no cuDNN
    if rule.target is not None:
        return {"cpu": CPU, "cuda": GPU}[rule.target]
    named = "".join([rule.name, *rule.tags, *(o.__name__ for o in rule.ops)]).lower()
    return GPU if "dnn" in named and "onednn" not in named else CPU


@dataclass
class Fired:
    """Which op types a rule fired for: of the node, and of what made the node's inputs."""

    node: set[tuple[str, type[Op]]] = field(default_factory=set)
    behind: set[tuple[str, type[Op]]] = field(default_factory=set)

    def add(self, rule: Rewrite, node: Any) -> None:
        self.node.add((rule.name, type(node.op)))
        for v in node.inputs:
            if v.owner is not None:
                self.behind.add((rule.name, type(v.owner.op)))


class Checker:
    """Runs rules on graphs, one by one, and compares values with those of the original graph.

    With ``often`` a rule meets each type of op at least this many times, and the n-th graph that
    has both is taken with probability ``often / n``: hundreds of graphs have the same rule fire in
    the same way.
    """

    def __init__(self, rules: Sequence[Rewrite], often: int | None = None) -> None:
        self.rules, self.often, self.rng = list(rules), often, new_rng()
        self.by_type: dict[type[Op], list[Rewrite]] = {}
        self.fired, self.wrong = Fired(), list[str]()
        self.met = Counter[tuple[str, type[Op]]]()
        self.graphs = self.compared = 0

    def rules_of(self, op: Op) -> list[Rewrite]:
        kind = type(op)
        if kind not in self.by_type:
            self.by_type[kind] = [r for r in self.rules if issubclass(kind, r.ops)]
        return self.by_type[kind]

    def check(self, graph: Graph) -> None:
        """Rewrite ``graph`` by each rule that applies somewhere, one at a time."""
        self.graphs += 1
        wanted: list[Any] | None = None
        for rule, ops in self._that_apply(FunctionGraph(graph.inputs, graph.outputs)).items():
            if self._takes(rule, ops):
                if wanted is None:
                    wanted = values(graph.outputs, graph.inputs, graph.arrays)
                self._compare(rule, graph, wanted)

    def _takes(self, rule: Rewrite, ops: set[type[Op]]) -> bool:
        self.met.update((rule.name, op) for op in ops)
        rarest = min(self.met[rule.name, op] for op in ops)
        return self.often is None or self.rng.uniform() * rarest < self.often

    def _that_apply(self, fgraph: FunctionGraph) -> dict[Rewrite, set[type[Op]]]:
        """Rules that have something to say about nodes, and of which ops; one that fails has."""
        contexts = {t: Context(fgraph, t) for t in (CPU, GPU)}
        found: dict[Rewrite, set[type[Op]]] = {}
        for node in fgraph.toposort():
            kind, made = type(node.op), makers(node)
            for rule in self.rules_of(node.op):
                if rule.admits is not None and not rule.admits(kind, made):
                    continue  # rewriting asks this first, too
                if kind not in found.get(rule, ()):
                    try:
                        new = rule.function(node, contexts[target_of(rule)])
                    except Exception:
                        new = node.outputs
                    if new is not None:
                        found.setdefault(rule, set()).add(kind)
        return found

    def _compare(self, rule: Rewrite, graph: Graph, wanted: list[Any]) -> None:
        fgraph = FunctionGraph(graph.inputs, graph.outputs)
        count = 0

        def seen(r: Rewrite, node: Any, new: Any) -> None:
            nonlocal count
            count += 1
            self.fired.add(r, node)

        try:
            with config.change_flags(on_opt_error="raise"):
                run_rewrites([rule], Context(fgraph, target_of(rule)), RewriteProfile(), seen)
            if not count:
                return
            check_graph(fgraph)
        except Exception as error:
            self.wrong.append(f"{rule.name} on {graph.text}: {type(error).__name__}: {error}")
            return
        self.compared += 1
        got = values(fgraph.outputs, fgraph.inputs, graph.arrays)
        if "unsafe" in rule.tags and not _all_finite([*graph.arrays, *wanted]):
            return
        if rule.name in OF_SYSTEMS and is_singular(graph, rule):
            return
        if why := differs(wanted, got, graph.arrays, rule):
            made = "; ".join(str(n.op) for n in fgraph.toposort())
            self.wrong.append(f"{rule.name} on {graph.text}: {why} [{made}]")


def values(outputs: Any, inputs: Any, arrays: Any) -> list[Any]:
    """The outputs' values, or the error in place of all of them.

    References broadcast as NumPy does; each node's shapes are held against its op's rule, too.
    """
    known: dict[Any, Any] = dict(zip(inputs, arrays, strict=True))
    try:
        for node in toposort(outputs, blockers=known):
            given = [v.data if isinstance(v, Constant) else known[v] for v in node.inputs]
            types = [v.type for v in node.inputs]
            host = {i: int(given[i]) for i in node.op.host_inputs}
            if all(isinstance(t, TensorType) for t in types):
                node.op.shapes(types, [np.shape(a) for a in given], host)
            known.update(zip(node.outputs, evaluate_node(node, given), strict=True))
        return [v.data if isinstance(v, Constant) else known[v] for v in outputs]
    except Exception as error:
        return [error] * len(outputs)


def is_singular(graph: Graph, rule: Rewrite) -> bool:
    """Whether a matrix that a node of the rule's ops reads has no digits left."""
    read = [n.inputs[0] for n in toposort(graph.outputs) if isinstance(n.op, rule.ops)]
    found = values(read, graph.inputs, graph.arrays)
    return any(isinstance(a, Exception) or not _is_regular(a) for a in found)


def _is_regular(a: np.ndarray) -> bool:
    wide = a.astype(np.complex128)
    known = np.isfinite(wide).all()
    return not a.size or bool(known and (np.linalg.cond(wide) < _MAX_CONDITION).all())


def _all_finite(arrays: Sequence[Any]) -> bool:
    """The assumptions of the rules tagged ``unsafe``."""
    floats = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind in "fc"]
    return all(np.isfinite(a).all() for a in floats)


#: Rules from a library's op, that wants a bias of the full size, to ops that broadcast.
LENIENT = {"local_gpudnn_to_neutral"}


def differs(wanted: Any, got: Any, arrays: Any, rule: Rewrite) -> str:
    """In which way values differ; empty where they do not."""
    for w, g in zip(wanted, got, strict=True):
        if isinstance(w, Exception) or isinstance(g, Exception):
            if type(w) is not type(g) and not isinstance(w, Exception):
                return f"raises {type(g).__name__}: {g}"
            if rule.name in LENIENT:
                continue
            if isinstance(w, Exception) and not isinstance(g, Exception):
                return f"hides {type(w).__name__}: {str(w)[:100]}"
            continue
        if not isinstance(w, np.ndarray):
            continue
        if (w.dtype, w.shape) != (g.dtype, g.shape):
            return f"{g.dtype}{g.shape} for {w.dtype}{w.shape}"
        if rule.name not in NOT_UNIQUE and (why := _other_values(w, g, arrays, rule)):
            return why
    return ""


_NARROW = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "complex64": 2e-5}

#: Systems of linear equations: rounding is multiplied by the condition of a drawn matrix, and
#: decides whether one without digits is singular, and what it gives.
OF_SYSTEMS = {"solve_by_lu", "solve_by_cholesky", "det_by_lu", "hermitian_beside_det"}
_SYSTEM_FACTOR, _MAX_CONDITION = 100, 1e5

#: Rules of values that are not unique: eigenvalues have any order, and equal ones any vectors.
#: Here they may change values; their records compare sums and magnitudes.
NOT_UNIQUE = {"eig_of_symmetric"}


def _other_values(w: np.ndarray, g: np.ndarray, arrays: Any, rule: Rewrite) -> str:
    if w.dtype.kind in "biu":
        bad = int((w != g).sum())
        return f"{bad} of {w.size} differ, {g.ravel()[:4]} for {w.ravel()[:4]}" if bad else ""
    names = {w.dtype.name, *(a.dtype.name for a in arrays)}
    tolerance = max(_NARROW.get(n, 1e-9) for n in names)
    tolerance *= _SYSTEM_FACTOR if rule.name in OF_SYSTEMS else 1
    wide = np.complex128 if w.dtype.kind == "c" else np.float64
    w, g = w.astype(wide), g.astype(wide)
    with np.errstate(all="ignore"):
        better = ~np.isfinite(w) & np.isfinite(g) & (rule.phase == "stabilize")
        size = max(1.0, float(np.max(np.abs(w), initial=0, where=np.isfinite(w))))
        same = np.isclose(w, g, rtol=tolerance, atol=tolerance * size, equal_nan=True) | better
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{g[at]} for {w[at]} at {at}, {int((~same).sum())} of {w.size} differ"
