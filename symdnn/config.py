"""The values of the flags, and where each value came from.

In rising priority a value comes from the flag's default, from an INI file (``~/.symdnnrc``, or the
files that the environment variable ``SYMDNNRC`` names), from the environment variable
``SYMDNN_FLAGS``, and from code::

    SYMDNN_FLAGS=device=cpu,dnn.conv.algo_fwd=time_once python train.py

    from symdnn.config import config
    config.dnn.conv.algo_fwd = "time_once"
    with config.change_flags(floatX="float64"):
        ...
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symdnn.callers import (
    code_origin,
    depth_of_caller,
    depth_of_importer,
    is_command,
    is_imported_by,
)
from symdnn.disk import identity as _identity  # noqa: F401  # early: it notes the time
from symdnn.disk.regular import read_regular
from symdnn.errors import ConfigError, UnknownFlagError
from symdnn.flag_types import Flag, Value, nearest
from symdnn.flags import FLAGS, WITHOUT_MEANING, nearest_flag

FLAGS_VARIABLE = "SYMDNN_FLAGS"
FILES_VARIABLE = "SYMDNNRC"
THEANOS_VARIABLE = "THEANO_FLAGS"


@dataclass(frozen=True)
class Setting:
    """A value together with where it came from, in words."""

    value: Value
    origin: str


Settings = dict[str, Setting]
#: The most that a file of flags may have.
_MOST_BYTES = 1 << 20
#: So many times that code set a flag can be undone.
_MOST_UNDONE = 64


@dataclass(frozen=True)
class FlagRow:
    """One flag as ``symdnn config`` prints it."""

    name: str
    value: Value
    default: Value
    choices: str
    help: str
    origin: str
    affects: str


# --- validation -----------------------------------------------------------------------------------


def _settings(name: str, raw: object, origin: str) -> Settings:
    """The settings that ``name = raw`` makes: one, two for a flag that sets others, or an error."""
    if name in WITHOUT_MEANING:
        _warn_without_meaning(name, origin)
        return {name: Setting(raw if isinstance(raw, str | int | float) else str(raw), origin)}
    flag = FLAGS.get(name)
    if flag is None:
        raise UnknownFlagError(unknown_flag(name, origin))
    if flag.old:
        text = f"flag {name} (from {origin}) is now called {', '.join(flag.sets)}"
        warnings.warn(text, UserWarning, stacklevel=depth_of_caller())
    setting = Setting(_parsed(flag, raw, origin), origin)
    return dict.fromkeys(flag.sets or (name,), setting)


def _parsed(flag: Flag, raw: object, origin: str) -> Value:
    try:
        return flag.parse(raw)
    except ValueError as why:
        text = f"flag {flag.name} = {raw!r} (from {origin}): {why}. Allowed: {flag.allowed()}."
        meant = nearest(str(raw), flag.choices)
        raise ConfigError(f"{text} Did you mean {meant!r}?" if meant else text) from None


def unknown_flag(name: str, origin: str = "") -> str:
    """What is said of a name that is no flag; ``origin`` says where it stands."""
    where = f" (from {origin})" if origin else ""
    members = sorted(f for f, flag in FLAGS.items() if f.startswith(name + ".") and not flag.old)
    if members:
        return f"{name}{where} is a group of flags, not a flag: {', '.join(members)}."
    meant = nearest_flag(name)
    advice = f"Did you mean {meant!r}?" if meant else "`symdnn config` prints all flags."
    return f"there is no flag {name!r}{where}. {advice}"


def _warn_without_meaning(name: str, origin: str) -> None:
    text = f"flag {name} (from {origin}) has no meaning in symdnn. {WITHOUT_MEANING[name]}"
    warnings.warn(text.rstrip(), UserWarning, stacklevel=depth_of_caller())


# --- sources --------------------------------------------------------------------------------------


def _from_environment(text: str) -> Settings:
    """Parse ``"a=b,c.d=e"``; of two values for one flag the later wins."""
    origin, settings = f"environment variable {FLAGS_VARIABLE}", Settings()
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, raw = item.partition("=")
        if not equals:
            raise ConfigError(f"{item!r} (from {origin}): wanted flag=value, separated by commas.")
        settings |= _settings(name.strip(), raw.strip(), origin)
    return settings


def _from_files(environment: Mapping[str, str]) -> Settings:
    """Read the INI files in order; a later file wins. Only the usual file may be missing."""
    named = environment.get(FILES_VARIABLE)
    if named is None:
        usual = _path("~/.symdnnrc")
        return _from_file(usual) if usual.is_file() else {}
    settings = Settings()
    for name in filter(None, named.split(os.pathsep)):
        settings |= _from_file(_path(name))
    return settings


def _path(name: str) -> Path:
    """``name`` with the home folder in place of ``~``; a user without one keeps the ``~``."""
    return Path(os.path.expanduser(name))


def _from_file(path: Path) -> Settings:
    parser = configparser.ConfigParser(
        interpolation=None, inline_comment_prefixes=("#", ";"), default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # floatX keeps its X
    try:
        text = read_regular(path, _MOST_BYTES).decode() if str(path) != os.devnull else ""
        parser.read_string(text, str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as why:
        raise ConfigError(f"file of flags {path} can't be read: {why}") from why
    settings = Settings()
    for section, key, raw in _entries(parser):
        name = key if section == "global" else f"{section}.{key}"
        settings |= _settings(name, raw, f"{path}:{_line_of(text, section, key)}")
    return settings


def _entries(parser: configparser.ConfigParser) -> Iterator[tuple[str, str, str]]:
    for section in parser.sections():
        for key, raw in parser.items(section):
            yield section, key, raw


def _line_of(text: str, section: str, key: str) -> int:
    """The line of ``key`` in ``[section]``: configparser does not keep it."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("["):
            inside = line.startswith(f"[{section}]")
        elif inside and re.match(rf"\s*{re.escape(key)}\s*[=:]", line):
            return number
    return 0


def _notice_theanos_flags(environment: Mapping[str, str]) -> None:
    """Warn where flags are given to Theano, and none to symdnn: it reads its own variable only."""
    text = environment.get(THEANOS_VARIABLE, "").strip()
    if not text or FLAGS_VARIABLE in environment or is_imported_by("symdnn.compat"):
        return
    taken, others = [], []
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, raw = item.partition("=")
        try:
            FLAGS[name.strip()].parse(raw.strip())
            taken.append(item)
        except (KeyError, ValueError):
            others.append(item)
    known = f" Of these flags it has {FLAGS_VARIABLE}={','.join(taken)}." if taken else ""
    rest = f" It does not take {', '.join(others)}: see docs/theano.md." if others else ""
    warnings.warn(
        f"{THEANOS_VARIABLE} is set, and symdnn does not read it: it reads {FLAGS_VARIABLE}, which "
        f"is written the same way.{known}{rest} symdnn.compat.theano reads it. "
        f"Set {FLAGS_VARIABLE} (to nothing, to keep the "
        "defaults) and this is not said again.",
        UserWarning,
        stacklevel=depth_of_importer(),
    )


# --- the public object ----------------------------------------------------------------------------


class Section:
    """The flags under a common prefix, as attributes: ``config.dnn.conv.algo_fwd``."""

    _owner: Config
    _prefix: str

    def __init__(self, owner: Config, prefix: str) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and inspect ask for these
            raise AttributeError(name)
        found = self._owner._read(self._prefix + name)
        if isinstance(found, Section):  # the next time Python finds it without this method
            object.__setattr__(self, name, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        self._owner.set(self._prefix + name, value)

    def __delattr__(self, name: str) -> None:
        """Undo the last time that code set the flag: ``monkeypatch`` and ``mock`` do so."""
        self._owner.undo(self._prefix + name)

    def __bool__(self) -> bool:
        # `if config.openmp:` was a test of a flag; the name is now only a group.
        return self._prefix.rstrip(".") not in WITHOUT_MEANING

    def __dir__(self) -> list[str]:
        rest = (f.removeprefix(self._prefix) for f in FLAGS if f.startswith(self._prefix))
        return sorted({*super().__dir__(), *(r.partition(".")[0] for r in rest)})

    def __repr__(self) -> str:
        return "\n".join(
            f"{row.name} = {row.value!r}  ({row.origin})"
            for row in self._owner.table()
            if row.name.startswith(self._prefix)
        )


class Config(Section):
    """All flags, read and set as attributes; a wrong name or value is refused at once."""

    _global: Settings
    _scopes: ContextVar[tuple[Settings, ...]]
    _before: dict[str, deque[tuple[Settings, Setting | None]]]
    _readers: dict[str, Callable[[], Any]]
    _changes: list[int]  # how often a flag was set or brought back

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(self, "")
        object.__setattr__(self, "_global", Settings())
        # What `set` has replaced, and where, the last at the end: `undo` brings it back.
        object.__setattr__(self, "_before", {})
        object.__setattr__(self, "_readers", {})
        object.__setattr__(self, "_changes", [0])
        # What `change_flags` has changed here: one dict for each open block, the innermost last.
        # A context variable, so that neither other threads nor other async tasks see it.
        object.__setattr__(self, "_scopes", ContextVar[tuple[Settings, ...]]("flags", default=()))
        self._global.update(_from_files(environment))
        self._global.update(_from_environment(environment.get(FLAGS_VARIABLE, "")))
        _notice_theanos_flags(environment)

    def get(self, name: str) -> Any:
        """The value of the flag ``name``, such as ``"dnn.conv.algo_fwd"``."""
        flag = FLAGS.get(name)
        if flag is not None and flag.sets:
            values = {self.get(each) for each in flag.sets}
            return values.pop() if len(values) == 1 else ""
        setting = self._effective(name)
        if setting is not None:
            return setting.value
        if flag is not None:
            return flag.first_value()
        if name in WITHOUT_MEANING:
            return ""
        raise UnknownFlagError(unknown_flag(name, code_origin()))

    def reader(self, name: str) -> Callable[[], Any]:
        """A function that gives what :meth:`get` does, in a third of the time."""
        if name in _PRESETS:
            return lambda: self.get(name)
        scopes, everywhere, default = self._scopes.get, self._global.get, FLAGS[name].first_value()

        def read() -> Any:
            for scope in reversed(scopes()):
                if name in scope:
                    return scope[name].value
            setting = everywhere(name)
            return default if setting is None else setting.value

        return read

    def set(self, name: str, value: object) -> None:
        """Set the flag ``name``, for all threads.

        Within a ``change_flags`` block that changes this flag, it is set until that block's end.
        """
        for each, setting in self._from_code(name, value).items():
            holder = self._holder(each)
            before = self._before.setdefault(each, deque(maxlen=_MOST_UNDONE))
            before.append((holder, holder.get(each)))
            holder[each] = setting
        self._changes[0] += 1

    def begin(self, name: str, value: object, origin: str) -> None:
        """Set a flag, a fixed one too, for a program that has not compiled anything yet."""
        self._global.update(_settings(name, value, origin))
        self._changes[0] += 1

    def undo(self, name: str) -> None:
        """Bring a flag back to what it was before :meth:`set` was called last.

        Where code has not set it (in this ``change_flags`` block, if one changes it) it stays.
        ``del config.floatX`` is the same.
        """
        flag = FLAGS.get(name)
        if flag is None and name not in WITHOUT_MEANING:
            raise UnknownFlagError(unknown_flag(name, code_origin()))
        for each in (flag.sets if flag else ()) or (name,):
            before = self._before.get(each)
            if before and before[-1][0] is self._holder(each):
                self.restore(each, before.pop()[1])

    def setting(self, name: str) -> Setting | None:
        """The flag's value with its origin, for :meth:`restore`; None: its default."""
        return self._setting(name)

    def restore(self, name: str, setting: Setting | None) -> None:
        """Bring a flag back to what :meth:`setting` gave, its origin too; where it is set as
        :meth:`set` says."""
        holder = self._holder(name)
        if setting is None:
            holder.pop(name, None)
        else:
            holder[name] = setting
        self._changes[0] += 1

    def origin(self, name: str) -> str:
        """Where the value of the flag ``name`` came from, in words."""
        flag = FLAGS.get(name)
        origins = [self._effective(each) for each in (flag.sets if flag else ()) or (name,)]
        words = {o.origin if o else "default" for o in origins}
        return " and ".join(sorted(words))

    def change_flags(
        self, changes: Mapping[str, object] | None = None, /, **flags: object
    ) -> ChangeFlags:
        """Change flags within a ``with`` block, or during each call of a decorated function.

        Dotted names are given as a mapping: ``change_flags(**{"dnn.conv.algo_fwd": "none"})``. The
        change is seen by the thread (or async task) that makes it and is undone at the end, also
        after an exception. A thread that is started within the block does not see it.

        >>> with config.change_flags(floatX="float64"):
        ...     print(config.floatX)
        float64
        """
        settings = Settings()
        for name, value in {**(changes or {}), **flags}.items():
            settings |= self._from_code(name, value)
        return ChangeFlags(self._scopes, settings)

    def state(self) -> tuple[object, ...]:
        """A value that is equal later if flags still have their values of now."""
        return self._changes[0], self._scopes.get()

    def state_parts(self) -> tuple[list[int], ContextVar[Any]]:
        """The list and the variable that :meth:`state` reads, for compiled code that compares."""
        return self._changes, self._scopes

    @property
    def is_changed_here(self) -> bool:
        """Whether code runs inside of a :meth:`change_flags` block."""
        return bool(self._scopes.get())

    def table(self) -> list[FlagRow]:
        """All flags with their values, in the order in which they are documented."""
        return [self._row(flag) for flag in FLAGS.values()]

    def compile_key(self) -> tuple[tuple[str, Value], ...]:
        """The values of all flags that change compiled code: a part of every cache's key."""
        return tuple((f.name, self.get(f.name)) for f in FLAGS.values() if f.affects == "code")

    def _row(self, flag: Flag) -> FlagRow:
        return FlagRow(
            name=flag.name,
            value=self.get(flag.name),
            default="" if flag.sets else flag.first_value(),
            choices=flag.allowed(),
            help=flag.help,
            origin=self.origin(flag.name),
            affects=flag.affects,
        )

    def _from_code(self, name: str, value: object) -> Settings:
        settings = _settings(name, value, code_origin())
        if name in FLAGS and FLAGS[name].fixed:
            raise ConfigError(
                f"flag {name} (from {code_origin()}) can't be changed after import. Set it in "
                f"{FLAGS_VARIABLE} or in ~/.symdnnrc."
            )
        return settings

    def _holder(self, name: str) -> Settings:
        """Where a flag is set from here: in the innermost block that changes it, or for all."""
        holders = [scope for scope in self._scopes.get() if name in scope]
        return holders[-1] if holders else self._global

    def _setting(self, name: str) -> Setting | None:
        for scope in reversed(self._scopes.get()):
            if name in scope:
                return scope[name]
        return self._global.get(name)

    def _effective(self, name: str) -> Setting | None:
        """The flag's own value, else that of a preset that is chosen."""
        setting = self._setting(name)
        if setting is not None or name not in _PRESETS:
            return setting
        for preset in _PRESETS[name]:
            chosen = self.get(preset)
            values = FLAGS[preset].presets.get(chosen, {})
            if name in values:
                return Setting(values[name], f"{preset}={chosen}")
        return None

    def _read(self, name: str) -> Any:
        """A flag's value, or the group of flags of that name."""
        if name in self._readers:
            return self._readers[name]()
        flag = FLAGS.get(name)
        if flag and name not in _PRESETS and not flag.sets and not callable(flag.default):
            return self._readers.setdefault(name, self.reader(name))()
        if name not in FLAGS and name + "." in _PREFIXES:
            section = Section(self, name + ".")
            return self._readers.setdefault(name, lambda: section)()
        return self.get(name)


class ChangeFlags(ContextDecorator):
    """What ``config.change_flags`` returns: a context manager and a decorator."""

    def __init__(self, scopes: ContextVar[tuple[Settings, ...]], settings: Settings) -> None:
        self._scopes, self._settings = scopes, settings
        self._before: list[tuple[Settings, ...]] = []

    def __enter__(self) -> None:
        self._before.append(self._scopes.get())
        self._scopes.set((*self._before[-1], dict(self._settings)))

    def __exit__(self, *_: object) -> None:
        self._scopes.set(self._before.pop())

    def _recreate_cm(self) -> ChangeFlags:
        # Each call of a decorated function has a block of its own, so threads may share it.
        return ChangeFlags(self._scopes, self._settings)


def _prefixes() -> frozenset[str]:
    names = [*FLAGS, *WITHOUT_MEANING]
    return frozenset(n[: dot.start() + 1] for n in names for dot in re.finditer(r"\.", n))


_PREFIXES = _prefixes()
#: Flag -> flags of which some choice sets it.
_PRESETS = {
    name: [f.name for f in FLAGS.values() if any(name in values for values in f.presets.values())]
    for flag in FLAGS.values()
    for values in flag.presets.values()
    for name in values
}


def _of_process() -> Config:
    """The flags of this process. The command ``symdnn`` ends with one line if they are wrong."""
    try:
        return Config(os.environ)
    except ConfigError as error:
        if not is_command():
            raise
        print(f"symdnn: {error}", file=sys.stderr)
        raise SystemExit(2) from None


config = _of_process()
