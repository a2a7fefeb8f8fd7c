"""Damaged files: bytes changed at random, in the file or inside of what a zip file packs."""

from __future__ import annotations

import io
import warnings
import zipfile

NUMBERS = (b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0", b"\xff" * 8,
           b"\0\0\0\0\0\0\4\0")  # fmt: skip


def damaged(data: bytes, rng) -> bytes:
    """A copy with one kind of damage, at one or a few places."""
    bad = bytearray(data)
    kind = rng.choice(["bit", "bit", "byte", "bytes", "number", "cut", "grown", "lost", "again"])
    at = int(rng.integers(len(bad)))
    if kind == "bit":
        bad[at] ^= 1 << int(rng.integers(8))
    elif kind == "byte":
        bad[at] = int(rng.integers(256))
    elif kind == "bytes":
        for _ in range(int(rng.integers(2, 20))):
            bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
    elif kind == "number":
        number = NUMBERS[int(rng.integers(len(NUMBERS)))]
        bad[at : at + len(number)] = number
    elif kind == "cut":
        del bad[at:]
    elif kind == "grown":
        bad[at:at] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == "lost":
        del bad[at : at + int(rng.integers(1, 40))]
    else:
        bad[at:at] = bad[at : at + int(rng.integers(1, 200))]
    return bytes(bad)


def damaged_inside(data: bytes, rng, wanted: str = "") -> bytes:
    """A zip file again, whose checksums are right, with one of its members damaged or renamed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(i.filename, i.compress_type, archive.read(i)) for i in archive.infolist()]
    hits = [k for k, (name, _, body) in enumerate(members) if body and wanted in name]
    hit = hits[int(rng.integers(len(hits)))]
    name, how, body = members[hit]
    head = int(rng.integers(2)) and len(body) > 128  # the head of an array says what it is
    body = damaged(body[:128], rng) + body[128:] if head else damaged(body, rng)
    members[hit] = (name, how, body)
    if rng.random() < 0.1:
        members.append(members[int(rng.integers(len(members)))])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that it has twice
        for name, how, body in members:
            archive.writestr(zipfile.ZipInfo(name), body, how)
    return out.getvalue()
