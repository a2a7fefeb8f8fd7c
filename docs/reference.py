"""Reference pages by topic, each entry under the name that a program writes: ``T.exp``."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from symdnn.graph.type import TensorType

__all__ = ["TOPICS", "topic_pages"]

#: Page: its title, and for each prefix the modules whose ``__all__`` is shown with it. A name is
#: shown once, on the first page that has it.
TOPICS = {
    "functions": ("Functions, gradients, loops", {"symdnn.": ["symdnn"]}),
    "creation": ("Variables and arrays", {"T.": ["symdnn.tensor.constructors"]}),
    "elementwise": ("Elementwise functions", {"T.": ["symdnn.tensor.elementwise"]}),
    "reductions": ("Reductions", {"T.": ["symdnn.tensor.reductions"]}),
    "shapes": ("Shapes and joining", {"T.": ["symdnn.tensor.shaping"]}),
    "indexing": ("Indexing and sorting", {"T.": ["symdnn.tensor.indexing"]}),
    "products": ("Products", {"T.": ["symdnn.tensor.products"]}),
    "linalg": (
        "Linear algebra: T.linalg",
        {
            "T.linalg.": ["symdnn.tensor.linalg"],
            "T.slinalg.": ["symdnn.tensor.slinalg"],
            "T.nlinalg.": ["symdnn.tensor.nlinalg"],
        },
    ),
    "random": ("Random numbers", {"T.": ["symdnn.tensor.random"]}),
    "distributions": (
        "Distributions",
        {"symdnn.distributions.": ["symdnn.distributions", "symdnn.distributions.constraints"]},
    ),
    "tools": (
        "Tools",
        {"T.": ["symdnn.tensor.tools"], "T.extra_ops.": ["symdnn.tensor.extra_ops"]},
    ),
    "nnet": (
        "Neural networks: T.nnet",
        {
            "T.nnet.": [
                "symdnn.tensor.nnet.basic", "symdnn.tensor.nnet", "symdnn.tensor.nnet.rnn",
                "symdnn.tensor.nnet.neighbours",
            ],
            "T.nnet.abstract_conv.": ["symdnn.tensor.nnet.abstract_conv"],
            "T.nnet.bn.": ["symdnn.tensor.nnet.bn"],
            "T.nnet.ctc.": ["symdnn.tensor.nnet.ctc"],
        },
    ),
    "signal": (
        "Pooling and convolution: T.signal",
        {
            "T.signal.pool.": ["symdnn.tensor.signal.pool"],
            "T.signal.conv.": ["symdnn.tensor.signal.conv"],
        },
    ),
    "fft": (
        "Fourier transforms: T.fft",
        {"T.fft.": ["symdnn.tensor.fft"], "T.signal.": ["symdnn.tensor.signal"],
         "theano_fft.": ["symdnn.tensor.theano_fft"]},
    ),
    "sparse": ("Sparse matrices: symdnn.sparse", {"S.": ["symdnn.sparse"]}),
}  # fmt: skip


def topic_pages() -> Iterator[tuple[str, str]]:
    """(name, reStructuredText) of each page."""
    shown: set[str] = set()
    for name, (title, sources) in TOPICS.items():
        entries = []
        for prefix, modules in sources.items():
            for module in modules:
                entries += _entries(prefix, module, shown)
        yield name, f"{title}\n{'=' * len(title)}\n\n{_opening(sources)}" + "\n".join(entries)


def _opening(sources: dict[str, list[str]]) -> str:
    if any(prefix.startswith("T.") for prefix in sources):
        return "``import symdnn.tensor as T``\n\n"
    return "``import symdnn``\n\n"


def _entries(prefix: str, module: str, shown: set[str]) -> Iterator[str]:
    face = importlib.import_module(module)
    types = []
    for name in face.__all__:
        full, found = prefix + name, getattr(face, name)
        if full in shown or inspect.ismodule(found) or full in sys.modules:  # it has its own page
            continue
        shown.add(full)
        if isinstance(found, TensorType):
            types.append((full, str(found)))
        else:
            yield _entry(full, found)
    if types:
        rows = "\n".join(f"   * - ``{n}``\n     - ``{kind}``" for n, kind in types)
        yield (
            "Types, which make a variable when called with a name; ? is any size:\n\n"
            f".. list-table::\n   :header-rows: 1\n\n   * - name\n     - type\n{rows}\n"
        )


def _entry(full: str, found: Any) -> str:
    """A function, class or value with its signature and docstring."""
    text = inspect.getdoc(found) if callable(found) else None
    kind = "class" if inspect.isclass(found) else "function" if callable(found) else "data"
    body = "\n".join(f"   {line}".rstrip() for line in (text or "").splitlines())
    return f".. py:{kind}:: {full}{_signature(found)}\n\n{body}\n"


def _signature(found: Any) -> str:
    """The parameters and defaults, without types: those are in the text."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature([p.replace(default=_plain(p.default)) for p in plain]))


class _Shown:
    """A default value as text that stays on one line."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(default: Any) -> Any:
    text = repr(default)
    if default is inspect.Parameter.empty or (len(text) < 40 and "<" not in text):
        return default
    return _Shown("...")
