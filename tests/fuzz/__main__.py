"""``python -m tests.fuzz [area] [--seconds N] [--seed S] [--count N] ...``: run the fuzzer."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.areas import SHARES
from tests.fuzz.runner import Options, run


def parse(argv: list[str] | None = None) -> Options:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("area", nargs="?", choices=[*SHARES, "all"], default="all")
    p.add_argument("--seconds", type=float, default=0, help="stop after so long (default 60)")
    p.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    p.add_argument("--count", type=int, default=0, help="stop after so many tries of an area")
    p.add_argument("--first", type=int, default=0, help="the index of the first case")
    p.add_argument("--only", type=int, default=None, help="run one case, by its index")
    p.add_argument("--device", default="", help="cuda: compile for the GPU of this machine")
    p.add_argument("--processes", type=int, default=1)
    p.add_argument(
        "--prepare",
        metavar="FOLDER",
        default="",
        help="compile the device code of these cases into a cache folder; run nothing",
    )
    p.add_argument("--cache", metavar="FOLDER", default="", help="the cache folder to use")
    p.add_argument("--out", metavar="FILE", default="", help="write a record there")
    return Options(**vars(p.parse_args(argv)))  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(parse()))
