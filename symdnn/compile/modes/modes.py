"""Looks up modes by name."""

from __future__ import annotations

from symdnn.compile.modes.debug import DebugMode
from symdnn.compile.nanguard import NanGuardMode
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.errors import OptionError

_CHECKING_MODES: dict[str, type[Mode]] = {
    "DebugMode": DebugMode,
    "DEBUG_MODE": DebugMode,
    "NanGuardMode": NanGuardMode,
}


def get_mode(mode: Mode | str | None) -> Mode:
    """A mode from its name (``FAST_RUN``, ``DebugMode``, ...), or the one of the flag ``mode``."""
    if isinstance(mode, Mode):
        return mode
    name = str(config.mode) if mode is None else str(mode)
    if name == "Mode":
        return Mode()
    if name in ("FAST_RUN", "FAST_COMPILE"):
        return Mode(optimizer=name.lower())
    if name in _CHECKING_MODES:
        return _CHECKING_MODES[name]()
    known = ["Mode", "FAST_RUN", "FAST_COMPILE", *_CHECKING_MODES]
    raise OptionError(f"mode {name!r}: wanted one of {', '.join(known)}, or a Mode")


def get_default_mode() -> Mode:
    """The mode that the flags describe."""
    return get_mode(None)
