"""Runs a program text for Theano in a process of its own, where the paths are installed."""

from __future__ import annotations

import os
import textwrap

from tests.forked import forked

HEAD = """
import warnings
warnings.simplefilter("error")
import symdnn.compat.theano as c
c.install()
import numpy as np
import theano
import theano.tensor as T
"""


def run(program, *, head=HEAD, args=(), environment=None, fails=False):
    """The standard output of the program (its standard error with ``fails``)."""
    text = head + textwrap.dedent(program)
    given = {k: v for k, v in os.environ.items() if not k.startswith(("THEANO", "SYMDNN"))}
    given |= {"OMP_NUM_THREADS": "1", "HOME": "/nonexistent", **(environment or {})}
    for name in ("SYMDNN_FLAGS", "SYMDNNRC"):
        if name in os.environ and name not in given:
            given[name] = os.environ[name]
    found = forked(text, *args, env=given, seconds=120)
    assert (found.returncode != 0) == fails, found.stderr
    return found.stderr if fails else found.stdout
