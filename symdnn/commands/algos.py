"""``symdnn algos``: cuDNN's algorithms for one convolution, or for all of a function.

symdnn algos --input 64,128,112,112 --filter 128,128,7,7 --pad 3 --direction bwd_data
symdnn algos --function train:step --shape x=64,3,224,224 --csv algos.csv --picture algos.png
symdnn algos --blocked         algorithms that gave a wrong result, and are not used
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from symdnn.config import config
from symdnn.disk.atomic import write_atomically
from symdnn.errors import InputError
from symdnn.graph.place import Place
from symdnn.tuning import blocked


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "algos", help="cuDNN's algorithms for a convolution: supported, time, memory",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--input", type=_sizes, help="N,C,H,W or N,C,D,H,W")
    parser.add_argument("--filter", type=_sizes, help="K,C/groups and its sizes")
    parser.add_argument("--blocked", action="store_true", help="only print the block list")
    _add_function_to(parser)
    for name, default in (("pad", 0), ("stride", 1), ("dilation", 1)):
        parser.add_argument(f"--{name}", type=_sizes, default=(default,), help="one size, or each")
    parser.add_argument("--groups", type=int, default=1, help="groups of channels (1)")
    dtypes = ("float32", "float16", "bfloat16", "float64")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="of all three arrays")
    layouts, how = ("NCHW", "NHWC"), "memory layout; --input is in the order N,C,H,W"
    parser.add_argument("--layout", choices=layouts, default="NCHW", help=how)
    directions = ("fwd", "bwd_data", "bwd_filter")
    parser.add_argument(
        "--direction", choices=directions, default="fwd",
        help="forward, or the gradient of the input (bwd_data) or of the filter (bwd_filter)",
    )  # fmt: skip
    parser.add_argument("--tf32", action="store_true", help="as with dnn.conv.allow_tf32=True")
    parser.add_argument("--flip", action="store_true", help="mirror the kernels, as Theano does")
    parser.add_argument("--no-time", action="store_true", help="only list supported ones")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def _add_function_to(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a whole function."""
    parser.add_argument(
        "--function", metavar="MODULE:NAME", help="a compiled function, or what returns one: the "
        "tables of all of its convolutions",
    )  # fmt: skip
    parser.add_argument(
        "--shape", type=_named_sizes, action="append", default=[], metavar="INPUT=SIZES",
        help="the shape of an input, for a function that was not called",
    )  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", help="with --function: write the rows to FILE")
    parser.add_argument(
        "--picture", metavar="FILE", help="with --function: draw time over workspace, and the best"
    )
    parser.add_argument("--energy", action="store_true", help="measure the energy, too")


def run(args: argparse.Namespace) -> int:
    """Print the table; returns 1 if nothing is supported. Without a GPU: an error of one line."""
    if args.blocked:
        print("\n".join(map(str, blocked.entries())) or "the block list is empty")
        return 0
    if args.function:
        return _run_function(args)
    if args.input is None or args.filter is None:
        raise InputError(
            "symdnn algos: wanted --input and --filter, --function MODULE:NAME, or --blocked"
        )
    module: Any = importlib.import_module("symdnn.gpu.conv_table")
    pad, stride, dilation = (
        v[0] if len(v) == 1 else v for v in (args.pad, args.stride, args.dilation)
    )
    signature = module.conv(
        args.input, args.filter, pad, stride, dilation, args.groups, args.dtype, args.layout,
        args.direction, args.tf32 or None, args.flip,
    )  # fmt: skip
    table = module.algorithms(signature, not args.no_time, _device_index(), args.energy)
    if args.json:
        print(json.dumps([asdict(row) for row in table.rows], indent=1))
    else:
        print(table)
    return 0 if table.supported() else 1


def _run_function(args: argparse.Namespace) -> int:
    """Show the tables of a function; returns 1 if it has no convolution of cuDNN's."""
    module: Any = importlib.import_module("symdnn.gpu.function_tables")
    found = module.tables(
        _named_function(args.function), dict(args.shape), time=not args.no_time,
        energy=args.energy, device=_device_index(),
    )  # fmt: skip
    if args.csv:
        write_atomically(args.csv, found.csv().encode())
    if args.picture and found.layers:
        found.save_picture(args.picture)
    print(found.json() if args.json else found)
    if args.json and not found.layers:
        print(found, file=sys.stderr)
    return 0 if found.layers else 1


def _named_function(text: str) -> Any:
    """The compiled function ``module:name``; modules of the working folder are found, too."""
    module, colon, name = text.partition(":")
    if not colon or not name:
        raise InputError(f"--function: wanted MODULE:NAME, got {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    from symdnn.compile.call.compiled_function import Function

    try:
        named = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--function: {text}: {error}; the working folder is {os.getcwd()}"
        ) from error
    if named is None:
        raise InputError(f"--function: the module {module} has no {name}")
    f = named() if callable(named) and not isinstance(named, Function) else named
    if not isinstance(f, Function):
        raise InputError(f"--function: {text} is no compiled function, but {type(f).__name__}")
    return f


def _device_index() -> int:
    device = str(config.device)
    return 0 if device == "auto" else Place.parse(device).index


def _named_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(
            f"wanted INPUT=SIZES, such as x=64,3,224,224, got {text!r}"
        )
    return name, _sizes(sizes)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        wanted = "wanted integers with commas between them, such as 64,128,112,112"
        raise argparse.ArgumentTypeError(f"{wanted}, got {text!r}") from None
