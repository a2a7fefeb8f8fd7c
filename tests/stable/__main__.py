"""Counts of the table: ``python -m tests.stable [symdnn|pytensor|jax|torch ...]``.

Runs the named packages (without names all that are installed) and prints how many programs have
right values and right gradients, by family. ``--moved`` adds a variant of those that can be moved,
``--whole`` all variants, ``--wrong`` lists the wrong numbers. ``--truths`` stores mpmath's results.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.stable.dialects import DIALECTS
from tests.stable.lab import Case, plain, short, whole
from tests.stable.truth import KEPT, to_keep


def main() -> None:
    options = {a for a in sys.argv[1:] if a.startswith("--")}
    named = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--truths" in options:
        KEPT.write_text(to_keep(c.key for c in short()))
        return
    for name in named or DIALECTS:
        try:
            dialect = DIALECTS[name]()
        except ImportError:
            continue
        cases = whole if "--whole" in options else short if "--moved" in options else plain
        report(name, dialect, list(cases()), "--wrong" in options)


def report(name: str, dialect: object, cases: list[Case], lists: bool) -> None:
    total: Counter[str] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for case in cases:
        total[case.form.family] += 1
        for part, found in zip(("value", "gradient"), case.judge(dialect)):  # type: ignore[arg-type]
            right[case.form.family, part] += not found
            if found and lists:
                print(f"  {part} of {case}: {found}", flush=True)
    print(f"{name} {dialect.version}")  # type: ignore[attr-defined]
    for family, count in total.items():
        print(f"  {family:16} {right[family, 'value']:5} {right[family, 'gradient']:5} of {count}")
    values, slopes = (sum(right[f, p] for f in total) for p in ("value", "gradient"))
    print(f"  {'all':16} {values:5} {slopes:5} of {total.total()}", flush=True)


main()
