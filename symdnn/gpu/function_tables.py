"""The tables of cuDNN's algorithms for all convolutions of a function: ``symdnn algos --function``.

``tables(f)`` has a table for each convolution in the plans that ``f`` has made, or for
``shapes`` of its inputs. ``str``, :meth:`FunctionTables.csv`, :meth:`FunctionTables.json` and
:meth:`FunctionTables.save_picture` show them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from symdnn.errors import InputError
from symdnn.gpu.conv.launch import signature
from symdnn.gpu.conv.launch_epilogue import convolution_of
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.conv_table import AlgorithmTable, TableRow, algorithms
from symdnn.graph.kernel import Call
from symdnn.ops.vendor.gpudnn_conv import DnnConvolution
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.tuning.budget import front
from symdnn.tuning.overrides import names_of

__all__ = ["FunctionTables", "LayerTable", "convolutions", "pareto", "tables"]

_COLUMNS = (
    "layer", "direction", "api", "number", "name", "supported", "ms", "workspace_bytes",
    "millijoules", "error", "deterministic", "on_front", "why",
)  # fmt: skip
_PANEL_COLUMNS, _PANEL_INCHES = 3, 3.2
#: Workspaces up to so many MiB, and times within such a ratio, are drawn on linear axes.
_LINEAR_MIB, _LINEAR_RATIO = 1, 5


@dataclass(frozen=True)
class LayerTable:
    """The table of one convolution of a function; ``layer`` is its most specific name."""

    layer: str
    direction: str
    line: str
    table: AlgorithmTable


@dataclass(frozen=True)
class FunctionTables:
    """A table for each convolution of a function, in the order in which they run."""

    layers: tuple[LayerTable, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each algorithm of each convolution, with ``on_front``: see :func:`pareto`."""
        for one in self.layers:
            best = {id(row) for row in pareto(one.table.rows)}
            for row in one.table.rows:
                known = {"layer": one.layer, "direction": one.direction, **asdict(row)}
                known["on_front"] = id(row) in best
                yield {name: known[name] for name in _COLUMNS}

    def csv(self) -> str:
        """The rows with a line of names, as comma-separated values; empty where unknown."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def json(self) -> str:
        """The rows as a list of JSON objects; ``null`` where unknown."""
        return json.dumps(list(self.rows()), indent=1)

    def save_picture(self, path: str) -> None:
        """A panel for each convolution, by matplotlib: time over workspace, and the front of both.

        Deterministic algorithms are filled circles. Raises ``InputError`` if nothing was timed.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        timed = [one for one in self.layers if any(row.ms is not None for row in one.table.rows)]
        if not timed:
            raise InputError("a picture of algorithms: wanted measured times, there are none")
        columns = min(_PANEL_COLUMNS, len(timed))
        lines = -(-len(timed) // columns)
        figure = Figure((_PANEL_INCHES * columns, _PANEL_INCHES * lines), layout="constrained")
        FigureCanvasAgg(figure)
        for i, one in enumerate(timed):
            _panel(figure.add_subplot(lines, columns, i + 1), one)
        figure.savefig(path)

    def __str__(self) -> str:
        parts = (f"{one.layer} {one.direction}  {one.line}\n{one.table}" for one in self.layers)
        return "\n\n".join(parts) or _NONE


#: What is printed where there is nothing to list.
_NONE = (
    "there is no convolution of cuDNN's in this function. If it was compiled for the CPU, "
    "compile it for the GPU (SYMDNN_FLAGS=device=cuda); f.dnn_report() has oneDNN's algorithms"
)


def _panel(axes: Any, one: LayerTable) -> None:
    """One convolution's algorithms."""
    rows = [row for row in one.table.rows if row.ms is not None and row.supported]
    for fixed, face in ((True, "tab:blue"), (False, "none")):
        some = [row for row in rows if row.deterministic == fixed]
        sizes, times = [row.workspace_bytes / 2**20 for row in some], [row.ms for row in some]
        axes.scatter(sizes, times, 24, facecolors=face, edgecolors="tab:blue")
    best = sorted(pareto(rows, energy=False), key=lambda row: row.workspace_bytes)
    axes.plot([r.workspace_bytes / 2**20 for r in best], [r.ms for r in best], "k-", linewidth=0.8)
    most = max(row.workspace_bytes for row in rows) / 2**20
    for row in best:
        at = row.workspace_bytes / 2**20
        side = "right" if at > max(most, _LINEAR_MIB) / 2 else "left"
        axes.annotate(row.name[:20], (at, row.ms or 0.0), fontsize=6, ha=side)
    if most > _LINEAR_MIB:
        axes.set_xscale("symlog", linthresh=_LINEAR_MIB)
    else:
        axes.set_xlim(-0.05 * _LINEAR_MIB, 1.05 * _LINEAR_MIB)
    known = [row.ms for row in rows if row.ms]
    if max(known) > _LINEAR_RATIO * min(known):
        axes.set_yscale("log")
    axes.set_title(f"{one.layer} {one.direction}", fontsize=8)
    axes.set_xlabel("workspace, MiB", fontsize=7)
    axes.set_ylabel("ms", fontsize=7)
    axes.tick_params(which="both", labelsize=6)


def pareto(rows: Sequence[TableRow], energy: bool = True) -> list[TableRow]:
    """The timed rows of which none is better in time, workspace (and energy) than another."""
    timed = [row for row in rows if row.supported and row.ms is not None]
    known = energy and all(row.millijoules is not None for row in timed)
    points = [
        (row.ms or 0.0, row.workspace_bytes, *([row.millijoules or 0.0] if known else []))
        for row in timed
    ]
    return [timed[i] for i in front(points)]


def convolutions(f: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> list[Call]:
    """The calls of a function's convolutions by cuDNN, those of epilogues without their epilogue.

    ``shapes`` are those of inputs by name; without any, the plans that it has made are read.
    Raises :class:`~symdnn.errors.InputError` if there are none.
    """
    plans: Sequence[Any] = f.stages.specialise(shapes) if shapes else f.plans()
    if not plans:
        raise InputError(
            "the function has no plans yet: call it, or give the shapes of its inputs "
            "(symdnn algos --shape x=64,3,224,224)"
        )
    found = []
    for plan in plans:
        spec = plan.specialised
        for node in spec.segment.nodes:
            if isinstance(node.op, GpuDnnConvBiasActivation):
                found.append(convolution_of(spec.call(node)))
            elif isinstance(node.op, DnnConvolution):
                found.append(spec.call(node))
    return found


def tables(
    f: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    time: bool = True,
    energy: bool = False,
    device: int = 0,
) -> FunctionTables:
    """The tables of a function's convolutions; equal ones are measured once.

    ``shapes`` and errors are those of :func:`convolutions`, the others those of
    :func:`~symdnn.gpu.conv_table.algorithms`.
    """
    known: dict[ConvSignature, AlgorithmTable] = {}
    layers: list[LayerTable] = []
    for call in convolutions(f, shapes):
        s = signature(call)
        if s not in known:
            known[s] = algorithms(s, time, device, energy)
        node = call.node
        assert node is not None
        name = (*names_of(node)[-1:], f"convolution {len(layers) + 1}")[0]
        layers.append(LayerTable(name, s.direction, str(node.origin), known[s]))
    return FunctionTables(tuple(layers))
