"""``jit``: a Python function of arrays, traced with variables and compiled for kinds of arguments.

A function is traced once for each signature: the structure of its arguments, the dtype and rank of
each array, which of its sizes are 1 (only those broadcast), and the values of static arguments.
Sizes and Python numbers are no part of it.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from symdnn.compile.call.arguments import In, Out
from symdnn.compile.call.compiled_function import Function
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.errors import ArgumentError, MissingInputError, RetraceWarning, TypeMismatch
from symdnn.graph.names.torch_words import advises
from symdnn.graph.tracing import Trace, current_trace, tracing
from symdnn.graph.values.tree import Tree, flatten, paths, unflatten
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.control.statistics import statistics_updates
from symdnn.transforms.arguments import Signature, as_leaf, changes, read, signature_of, variable_of

__all__ = ["Jit", "jit", "split_updates"]

#: The most combinations of shapes that the quick look-up knows.
_MAX_KNOWN = 1024


class _Compiled:
    """A trace: its function, and how a call's results are put together."""

    def __init__(self, compiled: Function, tree: Tree) -> None:
        self.function, self.tree = compiled, tree
        self.join: Callable[[list[Any]], Any]
        if tree.kind is None:
            self.join = _only
        elif tree.kind is tuple and all(c.kind is None for c in tree.children):
            self.join = tuple
        else:
            self.join = lambda results: unflatten(tree, results)


def _only(results: list[Any]) -> Any:
    return results[0]


class Jit:
    """A compiled function of arrays: what :func:`jit` returns.

    Called with arrays it runs the compiled function of their signature, which is traced at the
    first such call. Called with variables, or while another function is traced, it is its
    expression, so it may be used in other functions and in gradients.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnames: Iterable[str] = (),
        mode: Mode | str | None = None,
        max_traces: int = 16,
    ) -> None:
        functools.update_wrapper(self, f)
        self.mode, self.max_traces = mode, max_traces
        self.name = getattr(f, "__name__", type(f).__name__)
        self._f = f
        self._positions = _positions(f)
        self.static_argnames = tuple(static_argnames)
        self._check_static()
        self._static_at = {self._positions.index(n) for n in self.static_argnames
                           if n in self._positions}  # fmt: skip
        self._known: dict[Any, _Compiled] = {}
        self._traces: dict[Signature, _Compiled] = {}
        self._bound: weakref.WeakKeyDictionary[Any, Jit] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    def _check_static(self) -> None:
        try:
            names = inspect.signature(self._f).parameters
        except (TypeError, ValueError):
            return
        if any(p.kind is p.VAR_KEYWORD for p in names.values()):
            return
        for n in self.static_argnames:
            if n not in names:
                raise ArgumentError(
                    f"jit: {self.name} has no argument {n!r} to be static, only {', '.join(names)}"
                )

    # -- calls --------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results: of arrays as arrays, of variables as expressions."""
        static: dict[str, Any] = {}
        if kwargs or self.static_argnames:
            args, kwargs, static = self._arranged(args, kwargs)
        if current_trace() is not None:
            return self._inline(args, kwargs, static)
        leaves: list[Any] = []
        key: list[Any] = []
        symbolic = not read(args, leaves, key)
        if kwargs and not symbolic:
            symbolic = not read(kwargs, leaves, key)
        if symbolic:
            return self._inline(args, kwargs, static)
        if static:
            key.append(tuple(static.items()))
        try:
            found = self._known.get(tuple(key))
        except TypeError as error:
            raise ArgumentError(_unhashable(self.name, static)) from error
        if found is None:
            found, leaves = self._look_up(args, kwargs, static)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[tuple(key)] = found
        return found.join(found.function(*leaves))

    def _arranged(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """Arguments by position where they may be, the others by name, and the static ones.

        Static ones are None where they stood.
        """
        while len(args) < len(self._positions) and self._positions[len(args)] in kwargs:
            args = (*args, kwargs.pop(self._positions[len(args)]))
        static = {n: kwargs[n] for n in self.static_argnames if n in kwargs}
        if static:
            kwargs = {n: v for n, v in kwargs.items() if n not in static}
        if any(i < len(args) for i in self._static_at):
            static |= {self._positions[i]: args[i] for i in self._static_at if i < len(args)}
            args = tuple(None if i in self._static_at else v for i, v in enumerate(args))
        return args, kwargs, dict(sorted(static.items()))

    def compiled(self, *args: Any, **kwargs: Any) -> Function:
        """The compiled function that a call with these arguments runs, for reports and prints."""
        args, kwargs, static = self._arranged(args, kwargs)
        return self._look_up(args, kwargs, static)[0].function

    @property
    def traces(self) -> int:
        """The number of signatures for which it was traced."""
        return len(self._traces)

    def clear(self) -> None:
        """Forget all traces."""
        with self._lock:
            self._traces.clear()
            self._known.clear()

    def _look_up(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], static: Mapping[str, Any]
    ) -> tuple[_Compiled, list[Any]]:
        names = [*self._positions[: len(args)]]
        names += [f"argument {i}" for i in range(len(names), len(args))]
        signature, leaves = signature_of(args, kwargs, static, names, self.name)
        with self._lock:
            try:
                found = self._traces.get(signature)
            except TypeError as error:
                raise ArgumentError(_unhashable(self.name, static)) from error
            if found is None:
                self._warn_of_traces(signature)
                found = self._traces[signature] = self._compile(signature)
        return found, leaves

    def _warn_of_traces(self, signature: Signature) -> None:
        count = len(self._traces)
        if count < self.max_traces or count % self.max_traces:
            return
        warnings.warn(
            f"{self.name} is traced and compiled again, for {count + 1} kinds of arguments by now: "
            f"{changes(signature, list(self._traces))}. Pass what differs from call to call as a "
            "number or an array of one dtype, or raise max_traces",
            RetraceWarning,
            stacklevel=5,
        )

    # -- traces -------------------------------------------------------------------------------

    def _compile(self, signature: Signature) -> _Compiled:
        inside = [variable_of(k, n) for k, n in zip(signature.kinds, signature.names)]
        args, kwargs = unflatten(signature.tree, inside)
        # Arrays of a call are no test values: other calls with other sizes share the trace.
        with tracing(self.name) as trace, config.change_flags(compute_test_value="off"):
            result = self._run(args, kwargs, dict(signature.static), trace)
            outputs, tree = flatten(result)
            where = paths(tree, "the result")
            found = [_as_result(v, f"{self.name}: {n}") for v, n in zip(outputs, where)]
        updates = _with_statistics(found, trace.updates)
        declared = [In(v, allow_downcast=None) for v in inside]
        try:
            compiled = function(
                declared, [Out(v, stay=True) for v in found], self.mode, updates=updates,
                name=self.name, on_unused_input="ignore",
            )  # fmt: skip
        except MissingInputError as error:
            raise MissingInputError(
                f"{self.name}: {error}. A call with arrays alone computes numbers, so it must be "
                "an argument. For an expression give one argument as T.constant(value)"
            ) from error
        return _Compiled(compiled, tree)

    def _inline(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], static: Mapping[str, Any]
    ) -> Any:
        """The function's expression of variables; updates go to the function that is traced."""
        leaves, tree = flatten((tuple(args), dict(kwargs)))
        args, kwargs = unflatten(tree, [as_leaf(v) for v in leaves])
        outer = current_trace()
        with tracing(self.name) as trace:
            result = self._run(args, kwargs, static, trace)
        if outer is not None:
            outer.add(trace.updates)
        elif trace.updates:
            names = ", ".join(map(str, trace.updates))
            raise ArgumentError(
                f"{self.name} updates {names}, which an expression cannot do. Call it inside of a "
                "function of symdnn.jit, or call the undecorated one, .__wrapped__, and pass the "
                "updates to symdnn.function"
            )
        return result

    def _run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], static: Mapping[str, Any],
        trace: Trace,
    ) -> Any:  # fmt: skip
        """The function's result, without updates, which are added to ``trace``."""
        given = list(args)
        named = dict(kwargs)
        for n, value in static.items():
            at = self._positions.index(n) if n in self._positions else len(given)
            if at < len(given):
                given[at] = value
            else:
                named[n] = value
        result, updates = split_updates(self._f(*given, **named))
        trace.add(updates)
        return result

    # -- methods ------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: traced apart for each object, which is no argument."""
        if instance is None:
            return self
        try:
            found = self._bound.get(instance)
        except TypeError as error:
            raise ArgumentError(
                f"{self.name}: a method of symdnn.jit needs an object that can be hashed and "
                f"referred to weakly, got a {type(instance).__name__}; decorate a function of its "
                "arrays instead"
            ) from error
        if found is None:
            # The object has the table's entry, so its function must not keep the object alive.
            # The object itself may have been named as static: it is, for this function.
            names = [n for n in self.static_argnames if n not in self._positions[:1]]
            found = Jit(_Method(self._f, instance), names, self.mode, self.max_traces)
            self._bound[instance] = found
        return _Bound(found, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return Jit, (self._f, self.static_argnames, self.mode, self.max_traces)

    def __deepcopy__(self, memo: dict[int, object]) -> Jit:
        return self  # as Python copies functions

    def __repr__(self) -> str:
        return f"<symdnn.jit of {self.name}, {self.traces} trace(s)>"


class _Bound:
    """A method of an object, which it keeps alive."""

    def __init__(self, method: Jit, instance: Any) -> None:
        self._method, self._instance = method, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)


class _Method:
    """A function with its first argument, which is not kept alive."""

    def __init__(self, f: Callable[..., Any], instance: Any) -> None:
        self._f, self._instance = f, weakref.ref(instance)
        self.__name__ = getattr(f, "__name__", "method")
        self.__doc__ = f.__doc__
        parameters = list(inspect.signature(f).parameters.values())[1:]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._f(self._instance(), *args, **kwargs)


def _positions(f: Callable[..., Any]) -> list[str]:
    """The names of the arguments that may be given by position."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    wanted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in wanted]


def _unhashable(name: str, static: Mapping[str, Any]) -> str:
    for n, value in static.items():
        try:
            hash(value)
        except TypeError:
            return f"{name}: the static argument {n} must be hashable, got {value!r}"
    return f"{name}: keys of a dict argument must be hashable and of one kind"


def _as_result(value: Any, where: str) -> Variable:
    """A leaf of the result as a variable; a Python number has the dtype that it has alone."""
    if not isinstance(value, Variable):
        if isinstance(value, str | bytes) or callable(value):
            raise TypeMismatch(where, "a variable, an array or a number", repr(value))
        return as_variable(value)
    if value.number_kind is float and not isinstance(value, Shared):
        return value.astype(str(config.floatX))
    return value


# -- updates --------------------------------------------------------------------------------------


def split_updates(result: Any) -> tuple[Any, Mapping[Any, Any]]:
    """What a function returned without updates, and these: ``results, {shared: new, ...}``."""
    if _is_updates(result):
        return None, result
    if type(result) is tuple and len(result) > 1 and _is_updates(result[-1]):
        rest = result[:-1]
        return (rest[0] if len(rest) == 1 else rest), result[-1]
    return result, {}


def _is_updates(value: Any) -> bool:
    if not isinstance(value, Mapping) or not any(isinstance(k, Variable) for k in value):
        return False
    for k in value:
        if not isinstance(k, Shared):
            raise TypeMismatch("updates of a function", "shared variables alone to update", k)
    return True


def _with_statistics(outputs: Sequence[Variable], updates: Mapping[Any, Any]) -> dict[Any, Any]:
    """Updates with those of statistics (batch normalisation in training) of the expressions."""
    news = [as_variable(v) for v in updates.values()]
    found: dict[Any, Any] = dict(statistics_updates([*outputs, *news]))
    return {**found, **updates}


# -- the decorator --------------------------------------------------------------------------------


@advises(
    donate_argnums="results take memory that is free",
    device="the flag device says where it runs",
    backend="the flag device says where it runs",
)
def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    mode: Mode | str | None = None,
    max_traces: int = 16,
) -> Any:
    """Compile a Python function of arrays (the meaning of ``jax.jit``).

    ``f`` takes and returns trees: dicts, lists, tuples, named tuples, dataclasses and None, with
    arrays and numbers as leaves. It is called with variables, and what it builds is compiled, once
    for each dtype and rank (and for which sizes are 1, since only those broadcast). Python numbers
    take the dtype of arrays that they meet, and may change without another trace. Arguments of
    ``static_argnames`` (or at the positions ``static_argnums``) reach ``f`` as they are. They must
    be hashable, and each new value is another trace. Results stay on the function's device:
    NumPy arrays on a CPU, arrays as of ``Out(borrow=True)`` on a GPU, in memory of their own.

    Shared variables that ``f`` reads have their present value in each call. ``f`` may update some:
    it returns ``results, {variable: new value}``, as the step of a scan does. Streams of random
    numbers and running statistics go on by themselves. ``mode`` is that of ``symdnn.function``.
    More than ``max_traces`` traces warn (:class:`~symdnn.errors.RetraceWarning`) with what changed.

    Raises :class:`~symdnn.errors.SymbolicValueError` if ``f`` asks a variable for its truth or for
    a number, and :class:`~symdnn.errors.ArgumentError` for arguments that are no arrays.

    >>> import numpy as np
    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> @symdnn.jit
    ... def line(params, x):
    ...     return {"y": T.dot(x, params["w"]) + params["b"]}
    >>> line({"w": np.ones(3), "b": 2.0}, np.eye(2, 3))
    {'y': array([3., 3.])}
    """
    if f is None:
        return functools.partial(jit, static_argnames=static_argnames,
                                 static_argnums=static_argnums, mode=mode,
                                 max_traces=max_traces)  # fmt: skip
    if not callable(f):
        raise TypeMismatch("jit", "a function", type(f).__name__)
    names = [static_argnames] if isinstance(static_argnames, str) else list(static_argnames)
    numbers = [static_argnums] if isinstance(static_argnums, int) else list(static_argnums)
    if numbers:
        positions = _positions(f)
        for n in numbers:
            if not -len(positions) <= n < len(positions):
                raise ArgumentError(f"jit: no argument {n} to be static, of {len(positions)}")
            names.append(positions[n])
    return Jit(f, dict.fromkeys(names), mode, max_traces)
