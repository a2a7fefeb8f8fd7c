"""``symdnn algos``: cuDNN's algorithms for one convolution, with time and memory.

symdnn algos --input 64,128,112,112 --filter 128,128,7,7 --pad 3 --direction bwd_data
symdnn algos --blocked         algorithms that gave a wrong result, and are not used
"""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import asdict
from typing import Any

from symdnn.config import config
from symdnn.graph.place import Place
from symdnn.tuning import blocked

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "algos", help="cuDNN's algorithms for a convolution: supported, time, memory",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--input", type=_sizes, help="N,C,H,W or N,C,D,H,W")
    which.add_argument("--blocked", action="store_true", help="only print the block list")
    parser.add_argument("--filter", type=_sizes, help="K,C/groups and its sizes")
    parser.set_defaults(parser=parser)
    for name, default in (("pad", 0), ("stride", 1), ("dilation", 1)):
        parser.add_argument(f"--{name}", type=_sizes, default=(default,), help="one size, or each")
    parser.add_argument("--groups", type=int, default=1, help="groups of channels (1)")
    dtypes = ("float32", "float16", "bfloat16", "float64")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="of all three arrays")
    layouts, how = ("NCHW", "NHWC"), "how they lie in memory; --input is in the order N,C,H,W"
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


def run(args: argparse.Namespace) -> int:
    """Print the table; returns 1 if nothing is supported. Without a GPU: an error of one line."""
    if args.blocked:
        print("\n".join(map(str, blocked.entries())) or "the block list is empty")
        return 0
    if args.filter is None:
        args.parser.error("--filter is required with --input")
    module: Any = importlib.import_module("symdnn.gpu.conv_table")
    pad, stride, dilation = (
        v[0] if len(v) == 1 else v for v in (args.pad, args.stride, args.dilation)
    )
    signature = module.conv(
        args.input, args.filter, pad, stride, dilation, args.groups, args.dtype, args.layout,
        args.direction, args.tf32 or None, args.flip,
    )  # fmt: skip
    device = str(config.device)
    index = 0 if device == "auto" else Place.parse(device).index
    table = module.algorithms(signature, not args.no_time, index)
    if args.json:
        print(json.dumps([asdict(row) for row in table.rows], indent=1))
    else:
        print(table)
    return 0 if table.supported() else 1


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        wanted = "wanted integers with commas between them, such as 64,128,112,112"
        raise argparse.ArgumentTypeError(f"{wanted}, got {text!r}") from None
