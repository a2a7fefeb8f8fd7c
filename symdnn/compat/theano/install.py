"""``install``: from then on ``import theano`` finds the modules of :mod:`.paths`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from symdnn.compat.theano import finder, settings

__all__ = ["install"]


def install(environment: Mapping[str, str] | None = None) -> None:
    """Let ``import theano`` and its submodules find symdnn, in this process.

    Unset flags get Theano's defaults: ``floatX=float64``, ``cast_policy=custom``, ``device=cpu``.
    ``.theanorc`` (or the files of ``THEANORC``) and ``THEANO_FLAGS`` are read as by Theano; the
    default of ``environment`` is ``os.environ``. A second call does nothing.

    Raises ``ImportError`` where another ``theano`` is imported already, and
    :class:`~symdnn.errors.ConfigError` for a value that a flag does not take.
    """
    module = sys.modules.get("theano")
    if finder.is_installed():
        return
    if module is not None:
        where = getattr(module, "__file__", None) or "no file"
        raise ImportError(
            f"symdnn.compat.theano.install: theano is imported already (from {where}), and modules "
            "that were imported from it would stay. Call install() above the first `import "
            "theano`, or run the program by `python -m symdnn.compat.theano script.py`"
        )
    settings.config.start(os.environ if environment is None else environment)
    finder.install()
