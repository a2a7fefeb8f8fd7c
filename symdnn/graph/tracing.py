"""Python functions that are called with variables, and so must not ask one for its value."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from symdnn.errors import GraphError, InputError
from symdnn.graph.values.numpy_functions import numpy_calls

__all__ = [
    "Trace", "call_with", "check_takes", "computes_truth", "current_trace", "is_tracing",
    "traced_number", "traced_truth", "tracing", "untraced",
]  # fmt: skip


class Trace:
    """The trace of a function (``symdnn.jit``): its name, and updates of shared variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Next values of shared variables that functions called inside have returned.
        self.updates: dict[Any, Any] = {}

    def add(self, updates: Mapping[Any, Any]) -> None:
        """Add updates. Raises :class:`~symdnn.errors.GraphError` for a second one of a variable."""
        for target, new in updates.items():
            if self.updates.get(target, new) is not new:
                raise GraphError(
                    f"{self.name}: {target} is updated twice, by two calls inside of one function; "
                    "return its new value from the first one and pass it to the second"
                )
            self.updates[target] = new


class _State(threading.local):
    traces: tuple[Trace, ...] = ()


_state = _State()


def is_tracing() -> bool:
    """Whether this thread traces a function."""
    return bool(_state.traces)


def current_trace() -> Trace | None:
    """The innermost trace of this thread."""
    return _state.traces[-1] if _state.traces else None


@contextmanager
def untraced() -> Iterator[None]:
    """A context in which nothing is traced: for the compiler, which a traced function may call."""
    before = _state.traces
    _state.traces = ()
    try:
        yield
    finally:
        _state.traces = before


@contextmanager
def tracing(name: str) -> Iterator[Trace]:
    """A context in which the function ``name`` is traced."""
    trace, before = Trace(name), _state.traces
    _state.traces = (*before, trace)
    try:
        yield trace
    finally:
        _state.traces = before


def _where() -> str:
    trace = current_trace()
    return f"inside of {trace.name}, which is traced, " if trace is not None else ""


def computes_truth(v: Any) -> bool:
    """Whether a call computes a truth, as of a comparison; in Theano's programs of no other."""
    if v.owner is None or v.owner.op.is_comparison:
        return v.owner is not None
    return getattr(v.type, "dtype", "") == "bool" and not numpy_calls


def traced_truth(v: Any) -> str:
    """The error of ``if v`` in a traced function."""
    return (
        f"{_where()}Python asked for the truth of {v} (of type {v.type}), which is known in a call "
        "only: use symdnn.control.cond or T.switch for a choice, symdnn.control.while_loop for a "
        "loop, or make the argument that it depends on static (static_argnames)"
    )


def traced_number(v: Any, wanted: str) -> str:
    """The error of ``int(v)`` and its kin."""
    do = (
        "use symdnn.control.cond or switch for a choice, symdnn.control.fori_loop or while_loop "
        "for a loop, or make the argument that it depends on static (static_argnames)"
    )
    if current_trace() is None:
        do = (
            "symdnn.function([inputs], x)(...) or x.eval() computes it; write T.exp(x) for "
            "math.exp(x), symdnn.control.fori_loop for range(x), T.stack(values)[x] for values[x]"
        )
    return (
        f"{_where()}Python asked for {wanted} of {v} (of type {v.type}), whose value is known in a "
        f"call only: {do}"
    )


def check_takes(
    what: str, function: Any, names: Sequence[str], keywords: Iterable[str] = ()
) -> None:
    """Refuse a function that can't be called with arguments of these names."""
    try:
        inspect.signature(function).bind(*names, **dict.fromkeys(keywords))
    except TypeError as why:
        listed = ", ".join([*names, *keywords])
        named = getattr(function, "__qualname__", None) or f"{function!r:.60}"
        text = f"{what}: {named} can't be called with ({listed}): {why}"
        raise InputError(text) from None
    except ValueError:  # of C, which does not tell
        return


def call_with(what: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """``function`` of the arguments, which ``what`` calls by these names.

    Raises :class:`~symdnn.errors.InputError` for a function that takes others.
    """
    try:
        return function(*arguments.values())
    except TypeError:
        check_takes(what, function, list(arguments))
        raise
