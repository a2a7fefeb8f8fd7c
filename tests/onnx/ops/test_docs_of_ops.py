"""``docs/onnx.md`` lists the ops that have builders, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from symdnn.onnx.build.table import known_ops

PAGE = (Path(__file__).parents[3] / "docs" / "onnx.md").read_text(encoding="utf-8")


def listed(name):
    text = PAGE.split(f"<!-- ops: {name} -->")[1].split("<!-- end -->")[0]
    return set(re.findall(r"\w+", text))


def test_the_lists_of_ops_are_complete():
    known = {domain: {op for d, op in known_ops() if d == domain} for domain, _ in known_ops()}
    assert listed("builders") == known[""]
    assert listed("com.microsoft") == known["com.microsoft"]


def test_ops_run_by_their_definition_are_those_without_builders():
    from onnx import defs

    text = PAGE.split("These run by their definition")[1].split("Of `ai.onnx.preview.training`")[0]
    for schema in defs.get_all_schemas():
        body = schema.has_function or schema.has_context_dependent_function
        if schema.domain == "" and body and ("", schema.name) not in known_ops():
            assert schema.name in text
