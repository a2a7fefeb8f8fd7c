"""The command ``symdnn``: what this machine has, flags, kernels, measurements, saved functions.

``symdnn COMMAND --help`` describes a command. ``python -m symdnn`` is the same program.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

from symdnn import __version__
from symdnn.commands import algos, cache, kernels, launch, onnx, serve, tune
from symdnn.config import FlagRow, config, unknown_flag
from symdnn.doctor import doctor_report
from symdnn.errors import SymdnnError, UnknownFlagError
from symdnn.flags import FLAGS, WITHOUT_MEANING

#: The exit status after Ctrl-C, as of programs that the signal ends.
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    parser = _parser()
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if rest and args.run is not _demo:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `symdnn config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SymdnnError, OSError) as error:
        text = _in_a_line(error) if isinstance(error, OSError) else str(error)
        print(text if text.startswith("symdnn ") else f"symdnn: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def _in_a_line(error: OSError) -> str:
    """``README.md: Not a directory``, or the error's own text if it names no file."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename2 or error.filename}: {error.strerror}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("symdnn", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"symdnn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    what = "print every flag, its value and its origin"
    flags = commands.add_parser("config", help=what, description=what)
    flags.add_argument("name", nargs="?", help="one flag, or a group such as dnn.conv")
    flags.set_defaults(run=_config)

    what = "print which libraries this machine has, which are missing, and where functions run"
    doctor = commands.add_parser("doctor", help=what, description=what)
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    doctor.set_defaults(run=_doctor)

    kernels.add_to(commands)
    algos.add_to(commands)
    cache.add_to(commands)
    launch.add_to(commands)
    onnx.add_to(commands)
    serve.add_to(commands)
    tune.add_to(commands)

    if importlib.util.find_spec("symdnn.demo"):
        # The demonstration reads its own arguments, --help too.
        what = "train a network on digits, or a small GPT on text"
        demo = commands.add_parser("demo", help=what, add_help=False)
        demo.set_defaults(run=_demo)
    for each in (parser, *commands.choices.values()):
        each.description = (each.description or "").replace("``", "")
    return parser


def _demo(args: argparse.Namespace) -> int:
    status: int | None = importlib.import_module("symdnn.demo").main(args.rest)
    return status or 0


# --- symdnn config --------------------------------------------------------------------------------


def _config(args: argparse.Namespace) -> None:
    rows = config.table()
    if args.name is None:
        _print_rows(rows)
        return
    members = [row for row in rows if row.name.startswith(args.name + ".")]
    if members:
        _print_rows(members)
        return
    one = [row for row in rows if row.name == args.name]
    if one:
        print("\n".join(_details(one[0])))
    elif args.name in WITHOUT_MEANING:
        print(f"{args.name} has no meaning here. {WITHOUT_MEANING[args.name]}".rstrip())
    else:
        raise UnknownFlagError(unknown_flag(args.name))


def _details(row: FlagRow) -> Iterator[str]:
    yield f"{row.name} = {row.value}"
    yield f"  {row.help}"
    yield f"  origin:  {row.origin}"
    yield f"  default: {row.default}"
    yield f"  allowed: {row.choices}"
    for choice, values in FLAGS[row.name].presets.items():
        yield f"  {choice} sets, unless something else does:"
        for name, value in values.items():
            now = config.get(name)
            yield f"    {name} = {value}" + ("" if now == value else f"  (now {now})")
    if row.affects == "code":
        yield "  Functions are compiled anew when it changes."


def _print_rows(rows: Sequence[FlagRow]) -> None:
    """A table for a reader, lines of tab-separated fields for a program."""
    head = ("flag", "value", "default", "origin")
    cells = [(row.name, str(row.value), str(row.default), row.origin) for row in rows]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(line) for line in [head, *cells]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*head)
    for row, line in zip(rows, cells, strict=True):
        table.add_row(*line, style="" if row.origin == "default" else "bold")
    Console(markup=False).print(table)  # a path may hold brackets


# --- symdnn doctor --------------------------------------------------------------------------------


def _doctor(args: argparse.Namespace) -> int:
    return doctor_report(args.json)
