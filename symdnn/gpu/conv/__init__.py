"""Convolutions by cuDNN: candidates, search, measurement, choice, launches, epilogues."""
