"""The file: a zip of ``graph.json``, ``values.safetensors`` and compiled code, not compressed.

Members are stored without compression, so that a file can't unpack to more than its size. They have
a fixed time, so that equal functions give equal files.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.io import safetensors
from symdnn.io.npz import TIME
from symdnn.io.reading import checked_members

GRAPH, VALUES, COMPILED = "graph.json", "values.safetensors", "compiled/"
#: The longest text of a graph: about a million nodes.
_GRAPH_BYTES = 1 << 28
_MOST_MEMBERS = 100_000

Array = np.ndarray[Any, Any]


@dataclass
class Contents:
    """The contents of a file: a document, named arrays, and named members of compiled code."""

    document: dict[str, Any]
    arrays: Mapping[str, Array]
    compiled: dict[str, bytes] = field(default_factory=dict)


def pack(contents: Contents) -> bytes:
    """The file's bytes."""
    text = json.dumps(contents.document, allow_nan=False, separators=(",", ":"))
    members = {
        GRAPH: text.encode(),
        VALUES: safetensors.write(contents.arrays, "values of a symdnn function", Path(VALUES)),
        **{f"{COMPILED}{name}": body for name, body in contents.compiled.items()},
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, TIME), body)
    return out.getvalue()


def unpack(file: Any, nbytes: int, path: Path, with_code: bool) -> Contents:
    """The contents of a file of this many bytes; compiled code only on request.

    Raises ``ValueError``, and the exceptions of the readers of zip files and JSON.
    """
    with zipfile.ZipFile(file) as archive:
        members = {m.filename: m for m in checked_members(archive, nbytes)}
        if len(members) > _MOST_MEMBERS:
            raise ValueError(f"it has {len(members)} members")
        if any(m.compress_type != zipfile.ZIP_STORED for m in members.values()):
            raise ValueError("a member is compressed")
        if any(m.file_size != m.compress_size for m in members.values()):
            raise ValueError("a member has two sizes")
        if members[GRAPH].file_size > _GRAPH_BYTES:
            raise ValueError(f"a graph of {members[GRAPH].file_size} bytes")
        document = json.loads(archive.read(GRAPH), parse_constant=_refuse)
        if not isinstance(document, dict):
            raise ValueError(f"{GRAPH} is no object")
        with archive.open(VALUES) as values:
            arrays, _ = safetensors.read_from(values, members[VALUES].file_size, path)
            if values.read(1):  # which also compares the checksum
                raise ValueError("values after the last one")
        code = [m for m in members if m.startswith(COMPILED)] if with_code else []
        found = {m.removeprefix(COMPILED): archive.read(m) for m in code}
    return Contents(document, arrays, found)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
