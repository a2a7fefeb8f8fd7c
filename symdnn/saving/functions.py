"""A compiled function as the contents of a file, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from symdnn.compile.call.arguments import In, Out
from symdnn.compile.call.compiled_function import Function
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.config import config
from symdnn.errors import (
    ConfigError,
    CudaUnavailable,
    CudnnError,
    FileFormatError,
    InputError,
    KernelCompileError,
    OptionError,
    OutOfDeviceMemory,
)
from symdnn.flags import FLAGS
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Shared, Variable
from symdnn.saving.container import Contents
from symdnn.saving.forms import forms_of, with_forms
from symdnn.saving.graphs import Reader, Writer, check_size, read_name

KIND = "symdnn function"
#: Version of the format. A file of a higher one is refused.
VERSION = 1
#: Flags that a graph is built under: loading it uses the same values.
_FLAGS = ("floatX", "cast_policy")

# -- writing ---------------------------------------------------------------------------------------


def contents_of(f: Function) -> Contents:
    """The contents of a function's file."""
    if not isinstance(f, Function):
        raise InputError(f"save: wanted a compiled function, got a {type(f).__name__}")
    signature = f.signature
    declared = signature.declared
    kept = {d.variable for d in declared if not isinstance(d.value, Shared)}
    own = {s: v for v, s in signature.states.items() if v in kept}
    writer = Writer()
    graph = writer.graph([d.variable for d in declared], signature.sources)
    news = graph["outputs"][len(graph["outputs"]) - len(signature.updated) :]
    next_of = {own[s]: new for s, new in zip(signature.updated, news) if s in own}
    inputs = []
    for i, d in enumerate(declared):
        entry = {**graph["inputs"][i], **_rules(d)}
        state = signature.states.get(d.variable)
        if state is not None and state not in own:
            entry["shared"] = writer.number(state)
        elif state is not None:
            entry["value"] = writer.keep(f"#input.{i}", state.get_value(borrow=True))
        if d.variable in next_of:
            entry["update"] = next_of[d.variable]
        inputs.append(entry)
    updates = [[writer.number(s), new] for s, new in zip(signature.updated, news) if s not in own]
    document = {
        "kind": KIND,
        "version": VERSION,
        "symdnn": _version(),
        "flags": {name: config.get(name) for name in _FLAGS},
        "name": signature.name,
        "allow_downcast": signature.allow_downcast,
        "memory_budget": signature.memory_budget,
        "inputs": inputs,
        "outputs": _outputs(f, graph["outputs"]),
        "updates": updates,
        "nodes": graph["nodes"],
        "ops": writer.ops,
        "constants": writer.constants,
        "shared": writer.shared_entries(),
        **forms_of(f),
    }
    return Contents(document, writer.arrays)


def _rules(d: In) -> dict[str, Any]:
    return {
        "keyword": d.name,
        "strict": bool(d.strict),
        "allow_downcast": d.allow_downcast,
        "implicit": d.implicit,
    }


def _outputs(f: Function, references: Sequence[Any]) -> dict[str, Any]:
    structure, borrow = f.signature.structure, f.signature.borrow
    if any(not isinstance(k, str) for k in structure.keys):
        raise InputError(
            f"save: outputs in a dict need strings as keys, got {structure.keys!r:.80}"
        )
    return {
        "structure": structure.kind,
        "keys": list(structure.keys),
        "variables": list(references[: len(borrow)]),
        "borrow": [bool(b) for b in borrow],
    }


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("symdnn")
    except PackageNotFoundError:  # run from its sources
        return ""


# -- reading ---------------------------------------------------------------------------------------


#: Errors of the machine or of the settings, not of the file.
_NOT_THE_FILE = (
    ConfigError, CudaUnavailable, CudnnError, KernelCompileError, OptionError, OutOfDeviceMemory,
)  # fmt: skip


def function_of(contents: Contents, path: Path, mode: Mode) -> Function:
    """The function of a file's contents; raises :class:`FileFormatError`."""
    document = contents.document
    _check_kind(document, path)
    with _about(path):
        flags = _flags(document)
    with config.change_flags(compute_test_value="off", warn_float64="ignore", **flags):
        with _about(path):
            arguments = _arguments(document, Reader(document, contents.arrays, str(path)))
        with _about(path, but=_NOT_THE_FILE):
            return with_forms(function(**arguments, mode=mode), document)


@contextmanager
def _about(path: Path, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Errors inside are :class:`FileFormatError`, ``but`` for some."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error!s:.300}"
        text = f"{path} is damaged, or written by another program ({why})"
        raise FileFormatError(text) from error


def _check_kind(document: Mapping[str, Any], path: Path) -> None:
    kind, version = document.get("kind"), document.get("version")
    if kind != KIND or type(version) is not int or version < 1:
        raise FileFormatError(f"{path} holds {kind!r:.60}, wanted {KIND!r}")
    if version > VERSION:
        raise FileFormatError(
            f"{path} is of format version {version}, this symdnn reads up to {VERSION}; update "
            f"symdnn (it was written by {document.get('symdnn')!s:.40})"
        )


def _flags(document: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(document["flags"])
    for name, value in given.items():
        if name not in _FLAGS or value not in FLAGS[name].choices:
            raise ValueError(f"it was written under {name}={value!r}"[:100])
    return given


def _arguments(document: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """Arguments of ``function``."""
    outputs, updates = document["outputs"], document["updates"]
    check_size(reader, document)
    next_of = [e.get("update") for e in document["inputs"]]
    references = [*outputs["variables"], *(new for _, new in updates)]
    wanted = [*references, *(r for r in next_of if r is not None)]
    graph = {"inputs": document["inputs"], "nodes": document["nodes"], "outputs": wanted}
    inputs, found = reader.graph(graph)
    results = found[: len(outputs["variables"])]
    news = found[len(results) : len(references)]
    rest = iter(found[len(references) :])
    declared = [
        _input(e, v, None if r is None else next(rest), reader)
        for e, v, r in zip(document["inputs"], inputs, next_of)
    ]
    pairs = [(reader.find(f"s{int(s)}", ()), new) for (s, _), new in zip(updates, news)]
    borrow = [b is True for b in outputs["borrow"]]
    made = [Out(v, borrow=b) for v, b in zip(results, borrow, strict=True)]
    return {
        "inputs": declared,
        "outputs": _structured(outputs, made, "output_forms" in document),
        "updates": pairs,
        "no_default_updates": True,
        "name": read_name(document["name"]),
        "allow_input_downcast": _bool_or_none(document["allow_downcast"]),
        "on_unused_input": "ignore",
        "memory_budget": _bytes_or_none(document.get("memory_budget")),
    }


def _input(
    entry: Mapping[str, Any], variable: Variable, update: Variable | None, reader: Reader
) -> In:
    value: Any = None
    if "shared" in entry:
        value = reader.find(f"s{int(entry['shared'])}", ())
    elif "value" in entry and isinstance(variable.type, TensorType):
        value = reader.array(entry["value"], variable.type.dtype)
    return In(
        variable,
        name=read_name(entry["keyword"]),
        value=value,
        update=update,
        strict=entry["strict"] is True,
        allow_downcast=_bool_or_none(entry["allow_downcast"]),
        implicit=entry["implicit"] is True,
    )


def _bool_or_none(entry: object) -> bool | None:
    if entry is not None and not isinstance(entry, bool):
        raise ValueError(f"wanted true, false or null, got {entry!r:.60}")
    return entry


def _bytes_or_none(entry: object) -> int | None:
    if entry is not None and (type(entry) is not int or entry < 1):
        raise ValueError(f"wanted a number of bytes or null, got {entry!r:.60}")
    return entry


def _structured(outputs: Mapping[str, Any], made: list[Out], structured: bool) -> Any:
    kind, keys = outputs["structure"], outputs["keys"]
    if structured:
        return made  # with_forms puts them together
    if kind == "dict":
        if len(set(keys)) != len(made) or not all(isinstance(k, str) for k in keys):
            raise ValueError("outputs in a dict without a key for each")
        return dict(zip(keys, made))
    if kind == "one":
        (only,) = made
        return only
    if kind != "list":
        raise ValueError(f"outputs in a {kind!r:.40}")
    return made
