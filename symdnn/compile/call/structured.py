"""Structured values (sparse matrices) as inputs and outputs of functions: their arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.compile.call.arguments import In, Out
from symdnn.compile.updates import as_pairs
from symdnn.errors import InputError
from symdnn.graph.values.structured import Form, Structured


@dataclass(frozen=True)
class InputForms:
    """The inputs of a function as users give them: (name, form, number of parts) for each, with
    form None for a tensor."""

    function: str
    inputs: tuple[tuple[str | None, Form | None, int], ...]

    def flat(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, structured values as their arrays."""
        found: list[Any] = []
        for i, value in enumerate(args):
            name, form, _ = self.inputs[i] if i < len(self.inputs) else (None, None, 1)
            found += [value] if form is None else form.split(value, self._text(i, name))
        by_name = {n: (i, f) for i, (n, f, _) in enumerate(self.inputs) if f is not None}
        named: dict[str, Any] = {}
        for key, value in kwargs.items():
            if key not in by_name:
                named[key] = value
                continue
            i, form = by_name[key]
            if i < len(args):
                raise InputError(f"{self.function} got several values for {key!r}")
            parts = form.split(value, self._text(i, key))
            named |= {f"{key}.{label}": p for label, p in zip(form.labels, parts, strict=True)}
        return found, named

    def _text(self, index: int, name: str | None) -> str:
        return f"{self.function}: input {index}" + (f" ({name})" if name else "")

    def groups(self) -> Iterable[range]:
        """The positions of each input's parts."""
        at = 0
        for _, _, count in self.inputs:
            yield range(at, at + count)
            at += count


def flat_inputs(inputs: object, function: str) -> tuple[Any, InputForms | None]:
    """The declared inputs with structured ones as their parts; None where there are none."""
    if not isinstance(inputs, list | tuple) or not any(map(_structured, inputs)):
        return inputs, None
    flat: list[Any] = []
    forms: list[tuple[str | None, Form | None, int]] = []
    for item in inputs:
        variable = _structured(item)
        if variable is None:
            flat.append(item)
            forms.append((None, None, 1))
            continue
        form, given = variable.form, item if isinstance(item, In) else In(variable)
        names = [f"{given.name}.{label}" if given.name else None for label in form.labels]
        default = given.value
        text = f"In({variable}): value"
        values = [None] * len(names) if default is None else form.split(default, text)
        flat += [
            In(v, name=n, value=d, strict=given.strict, allow_downcast=given.allow_downcast)
            for v, n, d in zip(variable.parts, names, values, strict=True)
        ]
        forms.append((given.name, form, len(names)))
    return flat, InputForms(function, tuple(forms))


def _structured(item: object) -> Structured | None:
    """The structured variable that an input is, or None."""
    variable = item.variable if isinstance(item, In) else item
    return variable if isinstance(variable, Structured) else None


def parts_of_output(item: object) -> tuple[list[Any], Form | None]:
    """An output as variables, and its form if it is structured."""
    value = item.variable if isinstance(item, Out) else item
    return (list(value.parts), value.form) if isinstance(value, Structured) else ([item], None)


def packed(results: Sequence[Any], forms: Sequence[Form | None]) -> list[Any]:
    """A call's results with structured outputs put together."""
    found, at = [], 0
    for form in forms:
        count = 1 if form is None else len(form.labels)
        parts = results[at : at + count]
        found.append(parts[0] if form is None else form.join(parts))
        at += count
    return found


def flat_pairs(items: object, what: str) -> Any:
    """Updates or givens with those of structured variables as pairs of their parts.

    A part whose new value is the old one has no pair.
    """
    pairs = as_pairs(items, what)
    if not any(isinstance(old, Structured) for old, _ in pairs):
        return items
    flat: list[tuple[Any, Any]] = []
    for old, new in pairs:
        if not isinstance(old, Structured):
            flat.append((old, new))
            continue
        fitting = old.fitting(new, what)
        new_parts = fitting.parts_for(old)
        flat += [(a, b) for a, b in zip(old.parts, new_parts, strict=True) if a is not b]
    return flat


def subset_of(wanted: Sequence[Any] | None, call: Callable[[], Any]) -> Any:
    """The outputs of ``call()`` at the places ``wanted``, of a dict those of the keys; None: all.

    A list, also of a single output. (``output_subset`` of a call, as in Theano.)
    """
    found = call()
    if wanted is None:
        return found
    if isinstance(found, dict):
        return {key: found[key] for key in wanted}
    outputs = found if isinstance(found, list) else [found]
    return [outputs[i] for i in wanted]
