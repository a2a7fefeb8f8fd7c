"""``save`` and ``load``: a compiled function as a file that any machine compiles for itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symdnn.compile.call.compiled_function import Function
from symdnn.compile.execute.targets import resolve_target
from symdnn.compile.modes.modes import get_mode
from symdnn.compile.program.capabilities import demanded
from symdnn.compile.program.mode import Mode
from symdnn.graph.target import Target
from symdnn.io.atomic import write_atomically
from symdnn.io.reading import opened
from symdnn.saving.container import pack, unpack
from symdnn.saving.functions import contents_of, function_of

PathLike = str | os.PathLike[str]


def save(
    f: Function,
    path: PathLike,
    compiled: bool = False,
    examples: Sequence[Sequence[Any]] = (),
) -> None:
    """Write the compiled function ``f`` to ``path``: its graph as you wrote it, and all values.

    The file has the graph before any rewrite, with givens and default updates applied; the values
    of shared variables and of inputs declared with ``In(value=...)``; names, dtypes and conversion
    rules of inputs; and how outputs are returned. It says nothing of the device: :func:`load`
    compiles it for any. It is no pickle and holds no code. Left out: the user's lines, tags, the
    mode, profiles, and plans.

    With ``compiled`` it also has the machine code, device code and measured choices of calls of
    the same shapes as ``examples``, lists of arguments: a copy of the function is called with
    them. See ``compiled`` of :func:`load`.

    Raises :class:`~symdnn.errors.InputError` for an op that is no data (a Python function in it,
    a class without :func:`saved_op`), and for outputs in a dict whose keys are no strings.

    >>> import tempfile, symdnn, symdnn.tensor as T
    >>> path = Path(tempfile.mkdtemp()) / "sum.symdnn"
    >>> x, w = T.fvector("x"), symdnn.shared([1.0, 2.0, 3.0], name="w")
    >>> symdnn.save(symdnn.function([x], (w * x).sum()), path)
    >>> float(symdnn.load(path)([1, 1, 1]))
    6.0
    """
    contents = contents_of(f)
    if compiled:
        from symdnn.saving.code import code_of  # it loads the kernels of the processor

        contents.compiled = code_of(contents, f.mode, examples)
    write_atomically(Path(path), pack(contents))


def load(
    path: PathLike,
    target: Target | str | None = None,
    mode: Mode | str | None = None,
    compiled: bool = False,
) -> Function:
    """The function of a file that :func:`save` wrote, compiled for ``target``.

    ``target`` is one of :class:`~symdnn.Mode`'s (default: that of the flag ``device``), ``mode`` is
    as in :func:`~symdnn.function`. The function has shared variables of its own
    (``f.get_shared()``), with the names and values that they had. The file may come from anywhere:
    nothing in it is run, and what it unpacks to is bounded by the flag ``load_limit_bytes``.

    With ``compiled`` it needs no compiler for calls of the shapes that it was saved with: the
    machine code in the file is run, so the file has to be one that you trust, of the same build of
    symdnn and for the same kind of processor or GPU. Without, that code is not even read.

    Raises :class:`~symdnn.errors.FileFormatError` for a file that is damaged, of another kind, of a
    later version, or with an op that this program does not know, and with ``compiled`` for one that
    has no compiled code or has it for another machine; and what :func:`~symdnn.function`
    raises for a target that cannot be had.
    """
    source = Path(path)
    chosen = _mode(target, mode)
    with opened(source, "saved function") as (file, nbytes):
        contents = unpack(file, nbytes, source, with_code=compiled)
    if compiled:
        from symdnn.saving.code import give_code

        give_code(contents, source, chosen)
    return function_of(contents, source, chosen)


def _mode(target: Target | str | None, mode: Mode | str | None) -> Mode:
    """The mode with its target found, so that what is wrong with that is not taken for the file."""
    chosen = get_mode(mode)
    explain = demanded(chosen.selection.takes)
    wanted = chosen.target if target is None else target
    return replace(chosen, target=resolve_target(wanted, explain=explain))
