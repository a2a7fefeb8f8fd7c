"""The command ``symdnn``: flags, what this machine has, the demonstration.

``symdnn --help`` lists the subcommands; ``python -m symdnn`` is the same command.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence

from symdnn import algos_cli
from symdnn.config import FlagRow, config, unknown_flag
from symdnn.doctor import Diagnosis, Library, diagnose
from symdnn.errors import SymdnnError, UnknownFlagError
from symdnn.flags import FLAGS, WITHOUT_MEANING


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    parser = _parser()
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    if rest and args.run is not _demo:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        return int(args.run(args) or 0)
    except (SymdnnError, FileNotFoundError, PermissionError) as error:
        print(f"symdnn: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `symdnn config | head`
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("symdnn", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    flags = commands.add_parser("config", help="print every flag, its value and its origin")
    flags.add_argument("name", nargs="?", help="one flag, or a group such as dnn.conv")
    flags.set_defaults(run=_config)

    doctor = commands.add_parser("doctor", help="what this machine has, what is missing for what")
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    doctor.set_defaults(run=_doctor)

    algos_cli.add_to(commands)

    if importlib.util.find_spec("symdnn.demo"):
        # The demonstration reads its own arguments, --help too.
        demo = commands.add_parser("demo", help="train a network on digits", add_help=False)
        demo.set_defaults(run=_demo)
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
    found = diagnose()
    if args.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print("\n".join(_report(found)))
    return 0 if found.cpu_works and not found.cudnn_refused else 1


def _report(found: Diagnosis) -> Iterator[str]:
    yield f"Python      {found.python}"
    yield f"Platform    {found.platform}"
    yield f"Packages    {', '.join(f'{name} {v}' for name, v in found.packages.items())}"
    yield from (
        f"            {name} can't be imported: {why}" for name, why in found.problems.items()
    )
    yield f"BLAS        {found.blas} (NumPy's)"
    yield f"Threads     {found.threads}"
    yield f"Cache       {found.cache_folder}: {found.cache_state}"
    yield f"LLVM        {_llvm(found)}"
    for library in found.cpu_libraries:
        yield from _library(library)
    yield ""
    yield f"GPU driver  {found.kernel_driver or 'none'}"
    yield f"GPUs        {found.gpus}"
    packages = (f"{name} {version or 'missing'}" for name, version in found.cuda_packages.items())
    yield f"Packages    {', '.join(packages)}"
    for library in found.cuda_libraries:
        yield from _library(library)
    yield f"Graph API   {_graph_api(found)}"
    yield ""
    yield from _verdict(found)


def _llvm(found: Diagnosis) -> str:
    """Whether loops are compiled for the CPU, and why not."""
    if found.llvm_problem:
        return f"off, elementwise work is NumPy's: {found.llvm_problem}"
    return f"on, llvmlite {found.llvmlite}"


def _graph_api(found: Diagnosis) -> str:
    """Whether convolutions may use cuDNN's newer kernels, by which package, and why not."""
    if found.graph_api_problem:
        return f"off: {found.graph_api_problem.removesuffix('. Tried in this order:')}"
    return f"on, nvidia-cudnn-frontend {found.cuda_packages['nvidia-cudnn-frontend']}"


def _library(library: Library) -> Iterator[str]:
    version = f", version {library.version}" if library.version else ""
    yield f"{library.name:<11} {library.path or 'not found'}{version}"
    if library.problem:
        yield f"            can't be used: {library.problem}"
    yield from (f"            {c.source}: {c.path}: {c.state}" for c in library.tried)


def _verdict(found: Diagnosis) -> Iterator[str]:
    yield "CPU:  works" if found.cpu_works else "CPU:  does not work; see the packages above"
    for library in found.cpu_libraries:
        if not library.path:
            yield f"      {library.name} not found, for {library.needed_for}"
    missing = found.missing_for_cuda()
    yield "CUDA: can't be used" if missing else "CUDA: all files are there"
    yield from (f"      missing: {each}" for each in missing)
    if found.cudnn_refused:
        yield "      and dnn.enabled=True insists on cuDNN"
    yield f"Functions run on {found.runs_on} (device={config.device})"
