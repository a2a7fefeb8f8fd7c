"""CUDA C from scalar programs and templates (``src/``), and records of its launches."""
