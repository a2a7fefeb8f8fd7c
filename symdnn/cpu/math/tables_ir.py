"""Numbers of small tables on the lanes of a vector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from symdnn.cpu.math.lanes_ir import Lane, Lanes, literal

#: Lanes of vectors that a processor permutes at once.
_MIN_PERMUTED = 8


def looked_up(k: Lanes, table: Sequence[float], place: Lane) -> Lane:
    """The numbers in these places of a table; a number has as many bits as a place.

    LLVM makes a permutation of lanes that are chosen from a vector of as many. A longer table is
    several vectors; lanes of short ones are loaded from memory.
    """
    t = {"i32": "float", "i64": "double"}[place.t]
    if k.width < _MIN_PERMUTED:
        return _loaded(k, table, t, place)
    first = _permuted(k, table[: k.width], t, place & k.width - 1)
    if len(table) <= k.width:
        return first
    rest = looked_up(k, table[k.width :], place - k.width)
    return k.test("ult", place, k.width).where(first, rest)


def _permuted(k: Lanes, table: Sequence[float], t: str, place: Lane) -> Lane:
    vector = f"{k.type(t)} <{_listed(table, t)}>"
    return _lane_by_lane(k, t, place, lambda at: f"extractelement {vector}, {at}")


def _loaded(k: Lanes, table: Sequence[float], t: str, place: Lane) -> Lane:
    whole, numbers = f"[{len(table)} x {t}]", _listed(table, t)
    name = f"@table_{hashlib.sha256(numbers.encode()).hexdigest()[:16]}"
    k.declared.add(f"{name} = private unnamed_addr constant {whole} [{numbers}]")

    def load(at: str) -> str:
        address = k.append(f"getelementptr {whole}, ptr {name}, i64 0, {at}")
        return f"load {t}, ptr {address}"

    return _lane_by_lane(k, t, place, load)


def _listed(table: Sequence[float], t: str) -> str:
    return ", ".join(f"{t} {literal(v, t)}" for v in table)


def _lane_by_lane(k: Lanes, t: str, place: Lane, number_at: Callable[[str], str]) -> Lane:
    found = "poison"
    for i in range(k.width):
        at = k.append(f"extractelement {k.type(place.t)} {place.name}, i32 {i}")
        one = k.append(number_at(f"{place.t} {at}"))
        found = k.append(f"insertelement {k.type(t)} {found}, {t} {one}, i32 {i}")
    return Lane(k, found, t)
