"""``symdnn serve PATH``: the function of a file behind HTTP, for a demonstration.

GET /health      whether it is alive
GET /metadata    names, dtypes and shapes of what it takes and gives
POST /run        a call: JSON ({"inputs": {"x": [[...]]}}), .npy or safetensors
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from symdnn.errors import SymdnnError


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "serve", help="answer requests with a saved function", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("path", help="a file of symdnn.save")
    parser.add_argument("--host", default="127.0.0.1", help="the address (this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="a free port (8000)")
    parser.add_argument("--target", help="cpu or cuda (the flag device)")
    parser.add_argument("--max-batch", type=int, default=32, help="rows of a call (32)")
    parser.add_argument("--max-delay-ms", type=float, default=5.0, help="wait for a batch (5)")
    parser.add_argument("--max-bytes", type=int, default=64 << 20, help="of a request (64 MiB)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Load the function and serve it until interrupted."""
    from symdnn.saving import load
    from symdnn.serving import application

    app = application(
        load(args.path, target=args.target),
        max_batch=args.max_batch,
        max_delay_ms=args.max_delay_ms,
        max_bytes=args.max_bytes,
    )
    try:
        uvicorn = importlib.import_module("uvicorn")
    except ImportError as error:
        raise SymdnnError(
            f"symdnn serve needs uvicorn: pip install symdnn[serve] ({error})"
        ) from error
    uvicorn.run(app, host=args.host, port=args.port)
