"""When collectives ran in a call, and what ran meanwhile: spans of time out of a profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    MoveStart,
    MoveWait,
    StreamStart,
    StreamWait,
)

_STARTS = (AllReduceStart, MoveStart, StreamStart)
_WAITS = (AllReduceWait, MoveWait, StreamWait)
#: Kinds of spans: nodes that compute; bytes on their way; the time that this costs the rank.
COMPUTE, MOVE, EXPOSED = "compute", "move", "exposed"


@dataclass(frozen=True)
class Span:
    """Something that took time: its name, its kind, begin and duration in seconds.

    ``index`` is the number of the profile's step that began it.
    """

    name: str
    kind: str
    begin: float
    seconds: float
    index: int = -1

    @property
    def end(self) -> float:
        """When it was over."""
        return self.begin + self.seconds


@dataclass(frozen=True)
class Timeline:
    """A call of one rank: ``began`` on the machine's clock, its ``seconds``, its spans."""

    rank: int
    began: float
    seconds: float
    spans: tuple[Span, ...]

    def of(self, kind: str) -> list[Span]:
        """The spans of a kind, in their order."""
        return [s for s in self.spans if s.kind == kind]

    @property
    def moving_seconds(self) -> float:
        """How long bytes were on their way: an upper bound, as their arrival is only seen by the
        wait for it."""
        return _covered(self.of(MOVE))

    @property
    def exposed_seconds(self) -> float:
        """How long this rank did nothing but communicate, or wait for the others."""
        return _covered(self.of(EXPOSED))

    def plain(self) -> dict[str, Any]:
        """Values that JSON can hold, for :meth:`of_plain`."""
        return asdict(self)

    @classmethod
    def of_plain(cls, given: dict[str, Any]) -> Timeline:
        """A timeline that another rank has made plain."""
        spans = tuple(Span(**s) for s in given["spans"])
        return cls(int(given["rank"]), given["began"], given["seconds"], spans)


def _covered(spans: Iterable[Span]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for s in sorted(spans, key=lambda s: s.begin):
        total += max(0.0, s.end - max(s.begin, reached))
        reached = max(reached, s.end)
    return total


def kind_of(node: Apply) -> str:
    """A collective's name: ``AllReduce(mean)``."""
    op = node.op.of if isinstance(node.op, MoveStart | StreamStart) else node.op
    name = type(op).__name__.removesuffix("Start")
    return f"{name}({op.op})" if hasattr(op, "op") else name


def timeline_of(
    steps: Sequence[tuple[Apply, float, float]], rank: int, began: float, seconds: float
) -> Timeline:
    """The timeline of a profile's steps: node, begin after that of the call, duration."""
    return Timeline(rank, began, seconds, tuple(_spans(steps)))


def _spans(steps: Sequence[tuple[Apply, float, float]]) -> Iterator[Span]:
    started: dict[Variable, tuple[int, Apply, float]] = {}
    for i, (node, begin, seconds) in enumerate(steps):
        if isinstance(node.op, _STARTS):
            started[node.outputs[-1]] = i, node, begin
            yield Span(kind_of(node), EXPOSED, begin, seconds, i)
        elif isinstance(node.op, _WAITS):
            tickets = [v for v in dict.fromkeys(node.inputs) if v in started]
            for index, start, since in (started.pop(v) for v in tickets):
                yield Span(kind_of(start), MOVE, since, begin + seconds - since, index)
                yield Span(kind_of(start), EXPOSED, begin, seconds, index)
        elif isinstance(node.op, Collective):
            yield Span(kind_of(node), MOVE, begin, seconds, i)
            yield Span(kind_of(node), EXPOSED, begin, seconds, i)
        else:
            yield Span(type(node.op).__name__, COMPUTE, begin, seconds, i)


def lanes(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    """Spans with numbers of lanes, in none of which two overlap."""
    free: list[float] = []
    found = []
    for s in sorted(spans, key=lambda s: s.begin):
        lane = next((i for i, end in enumerate(free) if end <= s.begin), len(free))
        free[lane : lane + 1] = [s.end]
        found.append((lane, s))
    return found


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Calls of several ranks in the Trace Event Format of Chrome and Perfetto, in microseconds.

    A process for each rank, with a thread for what it computes and some for its collectives.
    """
    events: list[dict[str, Any]] = []
    for t in timelines:
        shift = t.began - min(other.began for other in timelines)
        tracks = [(0, s) for s in t.spans if s.kind != MOVE]
        tracks += [(lane + 1, s) for lane, s in lanes(t.of(MOVE))]
        events.append(_named("process_name", t.rank, 0, f"rank {t.rank}"))
        for tid in sorted({tid for tid, _ in tracks}):
            name = f"collectives {tid}" if tid else "steps"
            events.append(_named("thread_name", t.rank, tid, name))
        events += [
            {
                "ph": "X", "pid": t.rank, "tid": tid, "name": s.name, "cat": s.kind,
                "ts": (shift + s.begin) * 1e6, "dur": s.seconds * 1e6,
            }
            for tid, s in tracks
        ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


_COLOURS = {COMPUTE: "tab:blue", MOVE: "tab:green", EXPOSED: "tab:red"}
_INCHES_WIDE, _INCHES_A_RANK = 12.0, 1.1


def picture(timelines: Sequence[Timeline], path: str) -> None:
    """Two bars for each rank, by matplotlib: its steps, in red while it communicates or waits and
    computes nothing; above them the bytes on their way."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    height = _INCHES_A_RANK * len(timelines) + 1.0
    figure = Figure((_INCHES_WIDE, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    first = min(t.began for t in timelines)
    for row, t in enumerate(timelines):
        for kind, low, high in ((COMPUTE, 0.5, 0.9), (EXPOSED, 0.5, 0.9), (MOVE, 0.1, 0.45)):
            bars = [((t.began - first + s.begin) * 1e3, s.seconds * 1e3) for s in t.of(kind)]
            axes.broken_barh(bars, (row + low, high - low), facecolors=_COLOURS[kind], alpha=0.7)
    axes.set_yticks([i + 0.5 for i in range(len(timelines))], [f"rank {t.rank}" for t in timelines])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    words = {COMPUTE: "computes", EXPOSED: "communicates only", MOVE: "bytes on their way"}
    handles = [Patch(color=_COLOURS[k], alpha=0.7, label=w) for k, w in words.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=8)
    figure.savefig(path)
