"""What comes first where the package is imported: the flags are read.

A wrong one is one line of the command ``symdnn``, and an error with its traceback of a program.
"""

from __future__ import annotations

import os
import sys

from symdnn.errors import ConfigError


def _is_command() -> bool:
    """Whether this process is the command ``symdnn`` or ``python -m symdnn``."""
    line = sys.orig_argv
    by_module = sys.argv[0] == "-m" and line[line.index("-m") + 1].split(".")[0] == "symdnn"
    return by_module or os.path.basename(sys.argv[0]) == "symdnn"


try:
    import symdnn.config  # noqa: F401
except ConfigError as error:
    if not _is_command():
        raise
    print(f"symdnn: {error}", file=sys.stderr)
    raise SystemExit(2) from None
