"""Flags from text, files and Python: the wrong raise ``ConfigError``, the rest hold."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.config import Config
from symdnn.errors import ConfigError
from symdnn.flag_types import Flag
from symdnn.flags import FLAGS, WITHOUT_MEANING
from tests.fuzz.areas import Area, Context, Failure

JUNK = ["", " ", "=", "==", ",", "\0", "\n", "[", "]", "%", "#", ";", ":", "é", "None", "nan",
        "inf", "-1", "1e400", "0x10", "True", "1_000", "9" * 30, "cuda", "cuda-1", "GB", "-5MB",
        "\ud800", "[global]", "floatX", "dnn", "dnn.", ".", "a.b.c", "\t",
        "'", '"', "\\", "\r"]  # fmt: skip


def value_for(rng: np.random.Generator, flag: Flag) -> str:
    """Mostly one that the flag takes."""
    if rng.random() < 0.25:
        return str(rng.choice(JUNK))
    if flag.choices:
        return str(rng.choice(flag.choices))
    given = {"bool": ["True", "0", "off", "maybe"], "int": ["0", "3", "-2", "x"],
             "float": ["0.5", "1e3", "nan"], "bytes": ["64", "2GiB", "1.5MB", "-3"],
             "str": ["/tmp/x", "a:b"], "device": ["cpu", "auto", "cuda1", "gpu0"],
             "objective": ["time", "0.7*time+0.3*energy", "2*time", "memory+"]}  # fmt: skip
    return str(rng.choice(given[flag.kind]))


def item(rng: np.random.Generator) -> tuple[str, str]:
    """A name and a value, as text; some names are misspelt, and some are Theano's."""
    names = [*FLAGS, *list(WITHOUT_MEANING)[:20]]
    name = str(rng.choice(names))
    flag = FLAGS.get(name)
    value = value_for(rng, flag) if flag else str(rng.choice(JUNK))
    if rng.random() < 0.15:
        k = int(rng.integers(len(name) + 1))
        name = name[:k] + str(rng.choice(JUNK)) + name[k + int(rng.integers(2)) :]
    return name, value


def environment(rng: np.random.Generator) -> str:
    """The text of SYMDNN_FLAGS."""
    parts = ["=".join(item(rng)) for _ in range(int(rng.integers(0, 4)))]
    return damaged(rng, ",".join(parts))


def damaged(rng: np.random.Generator, text: str) -> str:
    """Sometimes with something put in or taken out."""
    if rng.random() < 0.3:
        k = int(rng.integers(len(text) + 1))
        text = text[:k] + str(rng.choice(JUNK)) + text[k + int(rng.integers(3)) :]
    return text


def ini(rng: np.random.Generator) -> str:
    """The text of a file of flags."""
    lines = []
    for _ in range(int(rng.integers(0, 5))):
        name, value = item(rng)
        section, _, key = name.rpartition(".")
        lines += [f"[{section or 'global'}]", f"{key} = {value}"]
    return damaged(rng, "\n".join(lines))


PYTHON = [None, True, 0, -1, 10**40, 1.5, float("nan"), b"cpu", [], {}, "cpu", "", object, 1j]


def check(ctx: Context) -> list[Failure]:
    """One text in the environment, one file, one value from Python."""
    rng = ctx.rng
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flags"
        text, content = environment(rng), ini(rng)
        raw = content.encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            raw = bytes(rng.integers(0, 256, 40, "uint8")) + raw
        path.write_bytes(raw)
        cases: list[tuple[str, dict[str, str]]] = [
            (f"SYMDNN_FLAGS={text!r}", {"SYMDNN_FLAGS": text, "SYMDNNRC": ""}),
            (f"a file {raw!r}", {"SYMDNNRC": str(path)}),
        ]
        for what, given in cases:
            said = _made(given)
            if said:
                failures.append(ctx.fail(f"{what}: {said}", _script(given, raw)))
    failures += _from_python(ctx, rng)
    ctx.count("texts", 3)
    return failures


def _script(given: dict[str, str], raw: bytes) -> str:
    lines = ["from symdnn.config import Config"]
    if "SYMDNN_FLAGS" not in given:
        lines += ["import pathlib", f"pathlib.Path('flags').write_bytes({raw!r})"]
        given = {"SYMDNNRC": "flags"}
    return "\n".join([*lines, f"Config({given!r})"])


def _made(given: dict[str, str]) -> str:
    """What is wrong with configuring from an environment, or ``""``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            made = Config(given)
        except ConfigError as error:
            return "" if str(error) else "an error without words"
        except Exception as error:
            return f"raises {type(error).__name__}: {error}"
    try:
        for row in made.table():
            FLAGS[row.name].parse(row.value) if row.value != "" else None
    except Exception as error:
        return f"a value that its own flag refuses: {type(error).__name__}: {error}"
    return ""


def _from_python(ctx: Context, rng: np.random.Generator) -> list[Failure]:
    made: Any = Config({"SYMDNNRC": ""})
    name, text = item(rng)
    value = PYTHON[int(rng.integers(len(PYTHON)))] if rng.random() < 0.6 else text
    before = [row.value for row in made.table()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            with made.change_flags({name: value}):
                made.get(name)
        except ConfigError:
            pass
        except Exception as error:
            said = f"change_flags({{{name!r}: {value!r}}}) raises {type(error).__name__}: {error}"
            return [ctx.fail(said)]
    if [row.value for row in made.table()] != before:
        return [ctx.fail(f"change_flags({{{name!r}: {value!r}}}) is not undone")]
    return []


AREA = Area("flags", "texts", check, in_tests=600)
