"""A compiled function behind HTTP, for a demonstration: ``symdnn serve``."""

from symdnn.serving.app import application

__all__ = ["application"]
