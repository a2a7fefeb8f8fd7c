"""Structured inputs and outputs of a saved function: how sparse matrices are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from symdnn.compile.call.compiled_function import Function
from symdnn.compile.call.signature import Structure
from symdnn.compile.call.structured import InputForms
from symdnn.errors import InputError
from symdnn.graph.values.structured import Form
from symdnn.ops.sparse.variable import SparseForm
from symdnn.saving.graphs import read_name


def forms_of(f: Function) -> dict[str, Any]:
    """The entries of a function's file for nested inputs and outputs; none if there are none."""
    found: dict[str, Any] = {}
    if f.signature.forms is not None:
        found["input_forms"] = [[n, _written(form)] for n, form, _ in f.signature.forms.inputs]
    if f.signature.structure.forms:
        found["output_forms"] = [_written(form) for form in f.signature.structure.forms]
    return found


def _written(form: Form | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if not isinstance(form, SparseForm):
        raise InputError(f"save: wanted tensors and sparse matrices, got {form!r:.80}")
    return {"kind": "sparse", **asdict(form)}


def with_forms(f: Function, document: Mapping[str, Any]) -> Function:
    """The function that was made of the parts, with arguments and results as they were saved."""
    outputs = document["outputs"]
    signature = f.signature
    if "output_forms" in document:
        forms = tuple(map(_read, document["output_forms"]))
        structure = Structure(outputs["structure"], tuple(outputs["keys"]), forms)
        if structure.kind not in ("list", "one", "dict") or not any(forms):
            raise ValueError("structured outputs in no structure")
        if structure.kind == "dict" and len(structure.keys) != len(forms):
            raise ValueError("outputs in a dict without a key for each")
        _check_count(forms, len(outputs["variables"]))
        signature = replace(signature, structure=structure)
    if "input_forms" in document:
        pairs = [(read_name(name), _read(form)) for name, form in document["input_forms"]]
        _check_count([form for _, form in pairs], len(document["inputs"]))
        inputs = tuple((name, form, _count(form)) for name, form in pairs)
        signature = replace(signature, forms=InputForms(signature.name, inputs))
    return f if signature is f.signature else Function(signature, f.stages, f.profile)


def _count(form: Form | None) -> int:
    return 1 if form is None else len(form.labels)


def _check_count(forms: Sequence[Form | None], parts: int) -> None:
    if sum(map(_count, forms)) != parts:
        raise ValueError(f"structured values of {parts} parts that are not their number")


def _read(entry: Any) -> Form | None:
    if entry is None:
        return None
    given = dict(entry)
    if given.pop("kind") != "sparse":
        raise ValueError(f"a structured value {entry!r:.60}")
    sizes = (given["rows"], given["columns"])
    if any(n is not None and (type(n) is not int or n < 0) for n in sizes):
        raise ValueError(f"sizes {sizes!r:.60}")
    if type(given["matrix"]) is not bool:
        raise ValueError(f"matrix={given['matrix']!r:.60}")
    return SparseForm.checked(**given)
