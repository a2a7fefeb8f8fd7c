"""``symdnn tune``: measured choices that are kept on disk.

symdnn tune                    what was chosen for which question, and its time
symdnn tune --export FILE      writes all of it as text, a line for each
symdnn tune --import FILE      keeps what FILE has, from a machine with the same card and libraries
symdnn tune SCRIPT ...         runs a Python script with measured choices, and shows the new ones
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from symdnn.config import config
from symdnn.disk.atomic import write_atomically
from symdnn.errors import InputError
from symdnn.tuning import store

#: The fields of a key that describe the machine and not the question.
_MACHINE_FIELDS = (
    "gpu",
    "driver",
    "cudnn",
    "frontend",
    "cublaslt",
    "cpu",
    "onednn",
    "isa",
    "threads",
)
_MAX_KEY_CHARACTERS = 100


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "tune", help="measured choices: show, export, import", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--export", metavar="FILE", help="write all records to FILE")
    which.add_argument("--import", metavar="FILE", dest="source", help="keep the records of FILE")
    parser.add_argument("script", nargs="?", help="a Python script, followed by its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; returns 1 if lines of an imported file are damaged or can't be stored."""
    if args.export:
        lines = list(store.exported())
        text = "".join(line + "\n" for line in lines)
        write_atomically(args.export, text.encode())
        print(f"exported {len(lines)} choices to {args.export}")
        return 0
    if args.source:
        return _import(args.source)
    if args.script:
        return _run_script(args.script, args.arguments)
    found = list(store.records())
    print("\n".join(_rows(found)) or f"nothing was measured as yet (folder {store.folder()})")
    return 0


#: Flags with which a program measures its choices.
MEASURING = {
    "dnn.conv.algo_fwd": "time_once", "dnn.conv.algo_bwd_data": "time_once",
    "dnn.conv.algo_bwd_filter": "time_once", "dnn.rnn.algo": "time_once",
    "gpu.gemm.algo": "time", "onednn.conv.algo": "time",
}  # fmt: skip


def _run_script(script: str, arguments: list[str]) -> int:
    """Run a script as ``python`` does, with measurements; print the choices that it has added."""
    if not os.path.exists(script):
        raise InputError(f"symdnn tune: there is no file {script}")
    given = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(os.path.abspath(script))
    try:
        measured(lambda: runpy.run_path(script, run_name="__main__"))
    except Exception:  # the script's own, with its lines
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[0] = given
    return 0


def measured(program: Callable[[], Any]) -> Any:
    """What ``program`` returns, run with measured choices; those that it has added are printed."""
    before = {str(key) for key, _ in store.records()}
    with config.change_flags(MEASURING):
        result = program()
    new = [pair for pair in store.records() if str(pair[0]) not in before]
    if new:
        print("\n".join(_rows(new)))
    print(f"measured {len(new)} new choices; {len(before)} were known (folder {store.folder()})")
    return result


def _import(source: str) -> int:
    with open(source, encoding="utf-8") as file:
        done = Counter(store.imported(line) for line in file if line.strip())
    words = {"new": "new", "known": "known already", "wrong": "damaged", "lost": "not kept"}
    counts = [f"{done[word]} {text}" for word, text in words.items() if done[word]]
    print(f"imported from {source}: {', '.join(counts) or 'nothing'}")
    return 1 if done["wrong"] or done["lost"] else 0


def _rows(found: list[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[str]:
    machine = ""
    for key, record in sorted(found, key=lambda pair: str(_machine(pair[0]))):
        if _machine(key) != machine:
            machine = _machine(key)
            yield machine
        ms = record.get("ms")
        time = "-" if ms is None else f"{ms:.4g} ms"
        yield f"  {key.get('family', '?')}: {record.get('name', '?')}, {time}; {_question(key)}"


def _machine(key: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(key[name])}" for name in _MACHINE_FIELDS if name in key)


def _question(key: dict[str, Any]) -> str:
    own = {k: v for k, v in key.items() if k not in (*_MACHINE_FIELDS, "family")}
    text = " ".join(f"{k}={_short(v)}" for k, v in own.items())
    return text if len(text) <= _MAX_KEY_CHARACTERS else f"{text[: _MAX_KEY_CHARACTERS - 3]}..."


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(_short, value))
    return str(value)
