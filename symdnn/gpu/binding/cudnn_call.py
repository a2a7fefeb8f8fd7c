"""C functions of cuDNN as Python callables: loaded at the first call, errors as exceptions."""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Mapping
from typing import Any

from symdnn.errors import CudnnArgumentError, CudnnError
from symdnn.gpu.binding import cudnn_library
from symdnn.gpu.binding.cudnn_params import Argument, Output, OutputText, Parameter
from symdnn.gpu.binding.cudnn_types import CType
from symdnn.gpu.binding.libcuda import driver

STATUS = "cudnnStatus_t"
_RESULTS: dict[str, Any] = {
    STATUS: ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "const char *": ctypes.c_char_p,
    "void": None,
}
_LAST_ERROR_BYTES = 2048


class CudnnMissingFunction(CudnnError, NotImplementedError):
    """The loaded cuDNN does not have this function."""


class CudnnStatusError(CudnnError):
    """A function of cuDNN returned a status other than success. Each status has a class.

    ``function`` is the C function's name, ``status`` the number, ``status_name`` its name,
    ``message`` the text of ``cudnnGetErrorString``, ``details`` that of
    ``cudnnGetLastErrorString``, ``arguments`` a mapping of names to texts, ``library`` the version
    and path.
    """

    by_status: dict[int, type[CudnnStatusError]] = {}

    def __init_subclass__(cls, status: int = 0, **others: Any) -> None:
        super().__init_subclass__(**others)
        if status:
            CudnnStatusError.by_status[status] = cls

    def __init__(
        self,
        function: str,
        status: int,
        message: str = "",
        details: str = "",
        arguments: Mapping[str, str] | None = None,
        library: str = "",
    ) -> None:
        # All of it is in args, so that the exception can be pickled.
        super().__init__(function, status, message, details, arguments, library)
        self.function, self.status, self.message = function, status, message
        self.details, self.library = details, library
        self.arguments = dict(arguments or {})

    @property
    def status_name(self) -> str:
        """The status as C names it."""
        return self.message or f"status {self.status}"

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.status_name} ({self.status})"]
        if self.details:
            lines.append(f"  cuDNN says: {self.details}")
        if self.arguments:
            shown = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
            lines.append(f"  arguments: {shown}")
        if self.library:
            lines.append(f"  {self.library}")
        return "\n".join(lines)

    @classmethod
    def class_of(cls, status: int) -> type[CudnnStatusError]:
        """The class of a status. A status that the table lacks gets the class of its category."""
        known = cls.by_status
        return known.get(status) or known.get(status // 1000 * 1000) or CudnnStatusError


class Function:
    """A function of cuDNN, called as in C, except that it returns what C writes by pointers."""

    def __init__(
        self, name: str, parameters: Mapping[str, Parameter], returns: str, deprecated: bool
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.parameters, self.returns, self.deprecated = parameters, returns, deprecated
        self._given = tuple(name for name, p in parameters.items() if p.given)
        self._outputs = {
            name: p
            for name, p in parameters.items()
            if isinstance(p, Output | OutputText) and p.returned
        }
        self._c: Any = None
        self._plain = all(p.plain for p in parameters.values())

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call C; see ``__doc__`` of the function for its prototype."""
        if self._c is None:
            self._load()
        if named or len(args) != len(self._given):
            args = self._ordered(args, named)
        return self._call_plain(args) if self._plain else self._call(args)

    # --- a call -----------------------------------------------------------------------------------

    def _call_plain(self, args: tuple[Any, ...]) -> Any:
        try:
            status = self._c(*args)
        except ctypes.ArgumentError as error:
            raise self._refused(error) from None
        return self._checked(status, args)

    def _call(self, args: tuple[Any, ...]) -> Any:
        values = dict(zip(self._given, args, strict=True))
        held = {name: self._hold(name, values) for name in self.parameters}
        try:
            status = self._c(*map(_by_reference, self.parameters.values(), held.values()))
        except ctypes.ArgumentError as error:
            raise self._refused(error) from None
        returned = self._checked(status, args)
        results = tuple(p.result(held[name], held, values) for name, p in self._outputs.items())
        return results if len(results) > 1 else results[0] if results else returned

    def _hold(self, name: str, values: dict[str, Any]) -> Any:
        try:
            return self.parameters[name].hold(name, values)
        except (TypeError, ValueError) as error:
            raise self._bad(name, str(error)) from None

    def _checked(self, returned: Any, args: tuple[Any, ...]) -> Any:
        if self.returns != STATUS:
            return returned.decode() if isinstance(returned, bytes) else returned
        if returned:
            raise self._failure(returned, args)
        return None

    def _ordered(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments in C's order; keywords are C's names."""
        try:
            return self.__signature__.bind(*args, **named).args
        except TypeError as error:
            wanted = ", ".join(self._given) or "no arguments"
            raise CudnnArgumentError(f"{self.__name__}: {error}; it takes {wanted}") from None

    # --- errors -----------------------------------------------------------------------------------

    def _refused(self, error: ctypes.ArgumentError) -> CudnnArgumentError:
        """Our error for one of ctypes, whose text has the argument's number, from 1, and cause."""
        found = re.match(r"argument (\d+): (?:<class '\w+'>|\w+): (.*)", str(error), re.S)
        if not found:
            return CudnnArgumentError(f"{self.__name__}: {error}")
        return self._bad(list(self.parameters)[int(found[1]) - 1], found[2])

    def _bad(self, parameter: str, why: str) -> CudnnArgumentError:
        return CudnnArgumentError(f"{self.__name__}: {parameter}: {why}")

    def _failure(self, status: int, args: tuple[Any, ...]) -> CudnnStatusError:
        library = cudnn_library.library()
        details = ctypes.create_string_buffer(_LAST_ERROR_BYTES)
        library.cdll.cudnnGetLastErrorString(details, ctypes.c_size_t(_LAST_ERROR_BYTES))
        describe = library.cdll.cudnnGetErrorString
        describe.restype = ctypes.c_char_p
        error = CudnnStatusError.class_of(status)(
            self.__name__,
            status,
            (describe(status) or b"").decode(),
            details.value.decode("utf-8", "replace"),
            {name: _shown(value) for name, value in zip(self._given, args, strict=True)},
            str(library),
        )
        if self.__name__ == "cudnnCreate":
            error.add_note(f"  The GPU: {driver()}")
        if "SUBLIBRARY" in error.status_name:
            for name, why in library.not_loaded.items():
                error.add_note(f"  {name} can't be loaded: {why}")
        return error

    # --- the C function ---------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether the cuDNN in use, which is loaded for this, has the function."""
        return hasattr(cudnn_library.library().cdll, self.__name__)

    def _load(self) -> None:
        library = cudnn_library.library()
        try:
            c = library.cdll[self.__name__]
        except AttributeError:
            raise CudnnMissingFunction(
                f"{library} has no {self.__name__}. symdnn's table of functions was made from "
                f"cuDNN {cudnn_library.table_version()}: use that version or a newer one"
            ) from None
        c.restype = _RESULTS[self.returns]
        c.argtypes = [p.argtype for p in self.parameters.values()]
        self._c = c

    # --- introspection ----------------------------------------------------------------------------

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self._given])

    @property
    def prototype(self) -> str:
        """The function as C declares it."""
        inside = ", ".join(p.prototype(n) for n, p in self.parameters.items()) or "void"
        return f"{self.returns} {self.__name__}({inside})".replace("* ", "*")

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        outputs = ", ".join(self._outputs)
        text = f"{self.prototype}\n\nReturns {outputs or 'nothing'}."
        return f"{text} Deprecated in cuDNN." if self.deprecated else text

    def __repr__(self) -> str:
        return f"<cuDNN function {self.__name__}>"


def function(
    name: str, /, *, returns: str = STATUS, deprecated: bool = False, **kinds: Parameter | CType
) -> Function:
    """An entry of the table: the function ``name`` with its parameters, by name, in C's order.

    A parameter without a kind, only with a type, is an :class:`Argument`.
    """
    parameters = {
        name: kind if isinstance(kind, Parameter) else Argument(kind)
        for name, kind in kinds.items()
    }
    return Function(name, parameters, returns, deprecated)


def _by_reference(parameter: Parameter, held: Any) -> Any:
    """The argument for C: of a value that C writes, its address. ctypes passes arrays so itself."""
    if parameter.given or isinstance(held, ctypes.Array):
        return held
    return ctypes.byref(held)


def _shown(value: object) -> str:
    """An argument as text of at most 120 characters; an enum member by its name."""
    text = getattr(value, "name", None) if isinstance(value, int) else None
    text = text or repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
