"""``python -m symdnn.compat.theano script.py [args]``: runs a program written for Theano."""

from __future__ import annotations

import os
import runpy
import sys

from symdnn.compat.theano.install import install

USAGE = """usage: python -m symdnn.compat.theano (script.py | -m module) [args]

Runs a program that imports theano, with symdnn in its place. THEANO_FLAGS and .theanorc are read.
"""


def main() -> None:
    """Install the paths, then run the script, or the module after ``-m``, as ``__main__``."""
    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help") or args == ["-m"]:
        print(USAGE, end="")
        raise SystemExit(0 if args and args != ["-m"] else 2)
    install()
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(args[0]):
        print(f"symdnn.compat.theano: there is no file {args[0]!r}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = args
    sys.path[0] = os.path.dirname(os.path.abspath(args[0]))
    runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    main()
