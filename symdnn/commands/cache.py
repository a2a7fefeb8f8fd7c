"""``symdnn cache``: what is kept on disk between runs.

symdnn cache          where it is, how many entries of each kind, how much they take
symdnn cache check    reads every entry; those that are damaged are removed
symdnn cache clear    removes all of them
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

from symdnn.config import config
from symdnn.disk import object_file, space, store, trust
from symdnn.disk.space import Entry

__all__ = ["add_to", "run"]

_NAMES_OF_KINDS = {
    "object": "code for the CPU",
    "cubin": "code for GPUs",
    "tuning": "measured choices",
}


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "cache", help="what is kept on disk: show, check, clear", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("action", nargs="?", choices=("show", "check", "clear"), default="show")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; returns 1 if a check found damaged entries, else 0."""
    inside = trust.usable(store.base() / trust.KINDS[0], own_levels=2)
    found = None if inside is None else inside.parent
    print(f"folder  {store.base()}")
    if found is None:
        print("        can't be used, so nothing is kept on disk")
        return 0
    if found != store.base():
        print(f"        is not used; {found} is")
    if args.action == "clear":
        print(f"removed {space.clear(found)} files")
        return 0
    if args.action == "check":
        return _check(list(space.entries(found)))
    limit = int(config.base_compiledir_bytes)
    print("\n".join(_table(list(space.entries(found)))))
    print(f"limit   {_size(limit) if limit else 'none'} (flag base_compiledir_bytes)")
    return 0


def _table(entries: list[Entry]) -> Iterator[str]:
    for kind, words in _NAMES_OF_KINDS.items():
        mine = [e for e in entries if e.kind == kind]
        yield f"{kind:<7} {len(mine):>6} {_size(sum(e.nbytes for e in mine)):>10}  {words}"
    yield f"all     {len(entries):>6} {_size(sum(e.nbytes for e in entries)):>10}"


def _check(entries: list[Entry]) -> int:
    wrong = [(e, why) for e in entries if (why := _wrong(e))]
    for entry, why in wrong:
        entry.path.unlink(missing_ok=True)
        print(f"removed {entry.path}: {why}")
    print(f"checked {len(entries)} entries, {len(wrong)} of them wrong")
    return 1 if wrong else 0


def _wrong(entry: Entry) -> str:
    """The fault of an entry; empty if it has none."""
    try:
        content, _ = trust.read(entry.path)
    except (OSError, trust.Untrusted) as error:
        return str(error)
    name, suffix = entry.key, entry.path.suffix
    stores = {s.suffix: s for s in _stores()}
    if suffix not in stores:
        return ""  # perhaps the kind of a later version
    body = stores[suffix].content(name, content)
    if body is None:
        return "is damaged, another's, or of another version of symdnn"
    return _problem_of(suffix, name, body)


#: The stores of all kinds of entries: module and name.
_STORES = (
    ("symdnn.cpu.compiler.jit", "OBJECTS"),
    ("symdnn.cpu.compiler.jit", "FACTS"),
    ("symdnn.cpu.compiler.proven", "KINDS"),
    ("symdnn.gpu.binding.nvrtc", "CUBINS"),
    ("symdnn.tuning.store", "RECORDS"),
)


def _stores() -> list[Any]:
    return [getattr(importlib.import_module(module), name) for module, name in _STORES]


def _problem_of(suffix: str, key: str, body: bytes) -> str:
    """Whether object code is complete and has the function that the key names."""
    if suffix == ".cubin":
        return object_file.problem(body, object_file.CUDA)
    if suffix != ".o":
        return ""
    damaged = object_file.problem(body, object_file.host_machine())
    return damaged or ("" if key[:24].encode() in body else "has no function of its name")


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
