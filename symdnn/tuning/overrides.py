"""Algorithms chosen by a layer's name: the flag ``dnn.conv.overrides``, and :func:`override`.

The flag has patterns, and files of reports (:mod:`symdnn.tuning.replay`), whose algorithms run
again.

A layer's names are the hint's ``name``, the names of its result and of its filter, and the path of
the module that has the filter as a parameter: ``conv3`` for ``conv3.weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from symdnn.config import config
from symdnn.errors import ConfigError, InputError, OptionError
from symdnn.flag_types import is_new_way
from symdnn.flags import FLAGS
from symdnn.graph.traverse import parameter_name
from symdnn.graph.variable import Apply
from symdnn.ops.vendor.gpudnn_conv import DnnConvolution
from symdnn.tuning import replay
from symdnn.tuning.replay import Recorded

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
#: Suffix of a filter's gradient by :func:`symdnn.ops.nn.conv.Conv.vjp`.
_GRADIENT_SUFFIX = ".grad"


@dataclass(frozen=True)
class Override:
    """The algorithm of layers with a name that matches ``pattern`` (``*``, ``?`` as in a shell)."""

    pattern: str
    algo: str | int
    direction: str = ""

    def fits(self, names: tuple[str, ...], direction: str) -> bool:
        """Whether it applies to a layer with these names in this direction."""
        applies = self.direction in ("", direction)
        return applies and any(fnmatchcase(name, self.pattern) for name in names)


@dataclass(frozen=True)
class Replayed:
    """The file of a report, each of whose algorithms applies to the convolution of its row."""

    path: str


@lru_cache(maxsize=64)
def parse(text: str) -> tuple[Override | Replayed, ...]:
    """Parse a flag's value: ``"conv3*=fft_tiling; head:bwd_data=deterministic; report.json"``.

    Raises :class:`~symdnn.errors.ConfigError` for a text of another form.

    >>> parse("conv3*=small; head:bwd_data=deterministic")[1].direction
    'bwd_data'
    """
    found: list[Override | Replayed] = []
    for part in filter(None, (p.strip() for p in text.replace("\n", ";").split(";"))):
        if part.endswith(replay.SUFFIX) and not part.count("="):
            found.append(Replayed(part))
            continue
        name, equals, algo = (p.strip() for p in part.partition("="))
        pattern, colon, direction = (p.strip() for p in name.rpartition(":"))
        if not colon:
            pattern, direction = name, ""
        if not equals or not pattern or not algo or (colon and direction not in DIRECTIONS):
            raise ConfigError(
                f"flag dnn.conv.overrides: {part!r}; wanted PATTERN=ALGORITHM, or "
                f"PATTERN:DIRECTION=ALGORITHM with one of {', '.join(DIRECTIONS)}, or the path of "
                "a report (*.json)"
            )
        found.append(_checked(Override(pattern, int(algo) if algo.isdigit() else algo, direction)))
    return tuple(found)


def _checked(one: Override) -> Override:
    """The override; raises ``OptionError`` if none of its directions has the algorithm."""
    directions = (one.direction,) if one.direction else DIRECTIONS
    problems = [_problem(direction, one.algo) for direction in directions]
    found = [p for p in problems if p is not None]
    if len(found) == len(problems):
        raise found[-1]
    return one


def _problem(direction: str, algo: str | int) -> OptionError | None:
    """The error of an algorithm that a direction lacks, or None; numbers are not checked."""
    known = FLAGS[f"dnn.conv.algo_{direction}"].choices
    if isinstance(algo, int) or algo in known or is_new_way(algo, known):
        return None
    return OptionError(f"algorithm {algo!r} of {direction}: wanted one of {', '.join(known)}")


#: Algorithms by :func:`override`, for nodes of single functions.
_node_overrides: WeakKeyDictionary[Apply, str | int] = WeakKeyDictionary()


def algorithm_for(
    node: Apply | None, direction: str, question: Callable[[], Mapping[str, Any]] | None = None
) -> str | int | Recorded | None:
    """The algorithm that the user has chosen for a convolution by its name; None without one.

    :func:`override` has precedence over the flag. The last override of the flag that applies
    counts. ``question()`` has the convolution's shapes and settings, for rows of reports.
    """
    if node is None:
        return None
    if node in _node_overrides:
        return _node_overrides[node]
    text = str(config.dnn.conv.overrides)
    if not text:
        return None
    names = names_of(node)
    fitting: str | int | Recorded | None = None
    for one in parse(text):
        if isinstance(one, Override):
            fitting = one.algo if one.fits(names, direction) else fitting
        elif question is not None:
            found = replay.read(one.path).find(question(), names, str(node.origin))
            fitting = found or fitting
    return fitting


def override(f: Any, pattern: str, *, algo: str | int, direction: str | None = None) -> list[str]:
    """Choose the algorithm ``algo`` for a function's convolutions whose name matches ``pattern``.

    ``direction`` is ``"fwd"``, ``"bwd_data"`` or ``"bwd_filter"``; None stands for all that have
    the algorithm. The function is planned again at its next call. Returns the names of the layers
    with their directions. Raises :class:`~symdnn.errors.InputError` if no layer matches,
    ``OptionError`` for an algorithm that no direction has.
    """
    if direction not in (None, *DIRECTIONS):
        raise InputError(f"override: direction={direction!r}; wanted one of {DIRECTIONS}")
    one = _checked(Override(pattern, algo, direction or ""))
    nodes = [n for n in f.fgraph.nodes if isinstance(n.op, DnnConvolution)]
    found = [n for n in nodes if one.fits(names_of(n), n.op.direction) and _knows(n, algo)]
    if not found:
        known = sorted({name for n in nodes for name in names_of(n)})
        raise InputError(
            f"override: no convolution of cuDNN's in this function fits {pattern!r} and has an "
            f"algorithm {algo!r}; their names are {', '.join(known) or 'none'}"
        )
    _node_overrides.update(dict.fromkeys(found, algo))
    f.free()
    return [f"{names_of(n)[-1]} {n.op.direction}" for n in found]


def _knows(node: Apply, algo: str | int) -> bool:
    """Whether the node's direction has such an algorithm."""
    op: Any = node.op
    return _problem(op.direction, algo) is None


def names_of(node: Apply) -> tuple[str, ...]:
    """The names of a convolution, the most specific last."""
    return tuple(dict.fromkeys(_names(node)))


def _names(node: Apply) -> Iterator[str]:
    for result in node.outputs:
        if result.name:
            name = str(result.name)
            of_gradient = name.endswith(_GRADIENT_SUFFIX)
            yield from _paths(name.removesuffix(_GRADIENT_SUFFIX)) if of_gradient else [name]
    if getattr(node.op, "direction", "") != "bwd_filter":
        for v in node.inputs[:2]:
            name = parameter_name(v)
            if name:
                yield from _paths(name)
    if node.hints.name:
        yield node.hints.name


def _paths(parameter: str) -> Iterator[str]:
    """A parameter's name, and the path of its module."""
    yield parameter
    path, _, last = parameter.rpartition(".")
    if path and last:
        yield path
