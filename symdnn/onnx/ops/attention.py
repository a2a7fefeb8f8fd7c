"""Attention of opset 23 and later, and rotary embeddings."""

from __future__ import annotations

from typing import Any

OPS: dict[str, Any] = {}
