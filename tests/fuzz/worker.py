"""One process of several that share a run: options as JSON, the outcome into a file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.runner import Options, _set_up, run_area


def main(options: str, result: str) -> None:
    """Run the areas, then write what they found, whole or not at all."""
    chosen = Options(**json.loads(options))
    _set_up(chosen)
    outcomes = [asdict(run_area(a, chosen)) for a in chosen.areas()]
    part = Path(result + ".part")
    part.write_text(json.dumps(outcomes))
    part.rename(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
