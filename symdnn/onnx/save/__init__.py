"""Graphs of symdnn as files in ONNX's format."""
