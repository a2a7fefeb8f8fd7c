"""What a flag is: its type, how its values are read, and the nearest to a wrong word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

__all__ = ["Flag", "Value", "is_new_way", "nearest", "way_of"]

Value = str | bool | int | float


@dataclass(frozen=True)
class Flag:
    """A flag: what it is called, what it takes, and what it means.

    ``kind`` names the type (``choice``, ``bool``, ``int``, ``float``, ``bytes``, ``str``,
    ``device``, ``objective``). ``affects="code"`` puts the value into ``config.compile_key()``. A
    ``fixed`` flag can't be changed after import. A flag that ``sets`` others has no value of its
    own; where it is ``old``, it is the former name of the one that it sets. A choice that has
    ``presets`` gives other flags the values of this table, where nothing else sets them; one with
    ``ways`` also takes words of ways that only its reader knows (``least_once``, :func:`way_of`).
    """

    name: str
    kind: str
    default: Value | Callable[[], str]
    help: str
    choices: tuple[str, ...] = ()
    affects: str = ""
    fixed: bool = False
    minimum: float | None = None
    sets: tuple[str, ...] = ()
    old: bool = False
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    ways: bool = False

    def parse(self, raw: object) -> Value:
        """Return ``raw`` (text from a file, or a Python value) as a value of this flag.

        Raises ``ValueError`` where the flag does not take it.
        """
        value = _PARSERS[self.kind](self, raw)
        if self.minimum is not None and isinstance(value, int | float) and value < self.minimum:
            raise ValueError(f"{value} is too small")
        return value

    def allowed(self) -> str:
        """What the flag takes, in words: the list of choices, or its type."""
        words = ", ".join(self.choices) or _IN_WORDS[self.kind]
        words += ", another WAY_once or WAY_on_shape_change" * self.ways
        return words if self.minimum is None else f"{words}, at least {self.minimum:g}"

    def first_value(self) -> Value:
        """The default, computed now where it depends on the machine."""
        return self.default() if callable(self.default) else self.default


_IN_WORDS = {
    "bool": "True or False",
    "int": "an integer",
    "float": "a number",
    "bytes": "a number of bytes, also as 512MB or 2GiB",
    "objective": "time, memory, energy, or a sum of weighted ones such as 0.7*time+0.3*energy",
    "str": "a string",
    "device": "auto, cpu, cuda, or cuda0, cuda1, ... for one of several GPUs",
}
_BOOLS = {"true": True, "1": True, "yes": True, "on": True}
_BOOLS |= {"false": False, "0": False, "no": False, "off": False}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def _parse_choice(flag: Flag, raw: object) -> Value:
    text = str(raw)  # None and True are spelled "None" and "True" in the choices
    if text not in flag.choices and not (flag.ways and is_new_way(text, flag.choices)):
        raise ValueError("not an allowed value")
    return text


def _parse_bool(flag: Flag, raw: object) -> Value:
    key = str(raw).lower()
    if key not in _BOOLS:
        raise ValueError("not a truth value")
    return _BOOLS[key]


def _parse_int(flag: Flag, raw: object) -> Value:
    try:
        return int("" if isinstance(raw, bool | float) else str(raw))
    except ValueError:
        raise ValueError("not an integer") from None


def _parse_float(flag: Flag, raw: object) -> Value:
    try:
        value = float("" if isinstance(raw, bool) else str(raw))
    except ValueError:
        raise ValueError("not a number") from None
    if not isfinite(value):
        raise ValueError("not a finite number")
    return value


def _parse_bytes(flag: Flag, raw: object) -> Value:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(raw).strip().lower())
    if isinstance(raw, bool) or found is None or found[2] not in _UNITS:
        raise ValueError("not a size")
    return round(float(found[1]) * _UNITS[found[2]])


def _parse_str(flag: Flag, raw: object) -> Value:
    if not isinstance(raw, str):
        raise ValueError("not a string")
    return raw


def _parse_objective(flag: Flag, raw: object) -> Value:
    text = re.sub(r"\s", "", str(raw))
    term = r"(?:(?:\d+\.?\d*|\.\d+)\*)?(?:time|energy)"
    if text != "memory" and not re.fullmatch(rf"{term}(?:\+{term})*", text):
        raise ValueError("not an objective")
    return text


def _parse_device(flag: Flag, raw: object) -> Value:
    if not isinstance(raw, str) or not re.fullmatch(r"auto|cpu|cuda\d*", raw):
        raise ValueError("not a device")
    return raw


_PARSERS: dict[str, Callable[[Flag, object], Value]] = {
    "choice": _parse_choice,
    "bool": _parse_bool,
    "int": _parse_int,
    "float": _parse_float,
    "bytes": _parse_bytes,
    "str": _parse_str,
    "device": _parse_device,
    "objective": _parse_objective,
}


# -- words --------------------------------------------------------------------------------------


def way_of(word: object) -> str:
    """The way of choosing that a word names, such as ``time`` of ``time_once``; else ``""``."""
    found = re.fullmatch(r"(\w+?)_(?:once|on_shape_change)", str(word))
    return found[1] if found else ""


def is_new_way(word: object, known: Iterable[str]) -> bool:
    """Whether a word names a way of choosing, and looks like none of the ``known`` words' ways."""
    way = way_of(word)
    return bool(way) and not nearest(way, [way_of(k) or k for k in known])


#: How alike words are of which one may be meant: ``epsilon`` and ``eps`` need to begin alike.
_ALIKE = 0.68


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of ``known`` that ``word`` most looks like, or ``""``; case does not count."""
    by_lower = {k.lower(): k for k in known}
    given = word.lower()
    for found in difflib.get_close_matches(given, by_lower, n=5, cutoff=0.6):
        begins = given.startswith(found) or found.startswith(given)
        if begins or difflib.SequenceMatcher(None, given, found).ratio() >= _ALIKE:
            return by_lower[found]
    return ""
