"""Compiled code in the file of a function: cache entries that its calls read, for one machine.

The entries are those of the cache on disk, under the same keys, which are hashes of all that they
depend on: object code and LLVM's facts about the processor, cubins, measured choices. A fingerprint
says in words what machine and build they are of, so that another one is refused by name.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.compile.execute.targets import resolve_target
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.disk import overlay
from symdnn.errors import FileFormatError, InputError
from symdnn.graph.target import Target
from symdnn.saving.container import Contents
from symdnn.saving.functions import function_of

FINGERPRINT = "fingerprint.json"


def code_of(contents: Contents, mode: Mode, examples: Sequence[Sequence[Any]]) -> dict[str, bytes]:
    """Entries that a copy of the function reads in calls with ``examples``, and the fingerprint."""
    if not examples:
        raise InputError(
            "save: compiled=True needs examples=[arguments, ...], calls of the shapes whose code "
            "the file shall have"
        )
    with overlay.noting() as found:
        jit.note_process_wide()
        copy = function_of(contents, Path("the function"), mode)
        if copy.stages.target.kind == "cuda":  # whoever loads it checks algorithms, too
            importlib.import_module("symdnn.gpu.conv.checked").forget()
        for arguments in examples:
            copy(*arguments)
            for plan in copy.plans():
                plan.bound.become_hot()
            for _ in range(2):
                copy(*arguments)
            with config.change_flags(**{"cpu.compile": _hot_mode()}):  # loops as a whole
                copy(*arguments)
        fingerprint = _fingerprint(copy.stages.target)
    text = json.dumps(fingerprint, indent=1)
    return {FINGERPRINT: text.encode(), **dict(sorted(found.items()))}


def _hot_mode() -> str:
    mode = str(config.cpu.compile)
    return mode if mode == "never" else "always"


def give_code(contents: Contents, path: Path, mode: Mode) -> None:
    """Let kernels find the file's code; raises :class:`FileFormatError` for another machine's."""
    entries = dict(contents.compiled)
    text = entries.pop(FINGERPRINT, None)
    if text is None:
        raise FileFormatError(
            f"{path} has no compiled code: save it with compiled=True, or load it without"
        )
    try:
        theirs = {str(k): str(v) for k, v in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise FileFormatError(f"{path}: its fingerprint is damaged ({error})") from None
    ours = _fingerprint(resolve_target(mode.target))
    different = [k for k in sorted({*theirs, *ours}) if theirs.get(k) != ours.get(k)]
    if different:
        lines = [
            f"{k}: {theirs.get(k, 'none')} there, {ours.get(k, 'none')} here" for k in different
        ]
        raise FileFormatError(
            f"{path} has code for another machine or build ({'; '.join(lines)}). Load it without "
            "compiled=True: then it is compiled for this one"
        )
    overlay.give(entries)


def _fingerprint(target: Target) -> dict[str, str]:
    """What code is for, in words and digests."""
    code = jit.identity()
    found = {
        "symdnn's sources": code["sources"][:16],
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "llvmlite": _short(code["llvmlite"]),
        "machine": platform.machine(),
        "processor": _processor(code["processor"]),
        "target": str(target),
        "threads": str(target.threads),
        **{name: ".".join(map(str, number)) for name, number in target.libraries.items()},
    }
    if target.kind == "cuda":
        nvrtc = importlib.import_module("symdnn.gpu.binding.nvrtc")
        found["NVRTC"] = str(nvrtc.version())
    return found


def _short(library: str) -> str:
    """A version, and a part of the digest of the library."""
    number, _, digest = library.partition(" ")
    return f"{number} ({digest[:8]})"


def _processor(description: str) -> str:
    """The model, and a digest of all that code depends on."""
    lines = dict(line.split("\t: ", 1) for line in description.splitlines() if "\t: " in line)
    fields = {k.strip(): v for k, v in lines.items()}
    name = " ".join(fields[k] for k in ("vendor_id", "cpu family", "model") if k in fields)
    return f"{name or 'unknown'} ({hashlib.sha256(description.encode()).hexdigest()[:8]})"
