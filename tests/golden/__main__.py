"""Writes the golden texts anew: ``python -m tests.golden``."""

from tests.golden import FOLDER, MODELS, path_of, text_of

for old in FOLDER.glob("*.txt"):
    if old.stem not in MODELS:
        old.unlink()
for name in MODELS:
    path_of(name).write_text(text_of(name), encoding="utf-8")
    print(path_of(name))
