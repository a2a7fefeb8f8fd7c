"""Compiled pooling, and local response normalisation."""
