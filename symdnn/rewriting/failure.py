"""Reports exceptions that are raised in rewrites."""

from __future__ import annotations

import warnings

from symdnn.config import config


def report_failure(what: str, error: Exception, then: str) -> None:
    """Warn of, raise or ignore an exception of a rewrite, as the flag ``on_opt_error`` says.

    ``what`` says what failed, ``then`` what happens instead.
    """
    action = str(config.on_opt_error)
    if action == "warn":
        message = f"{what}: {type(error).__name__}: {error}. {then}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    elif action != "ignore":
        raise error
