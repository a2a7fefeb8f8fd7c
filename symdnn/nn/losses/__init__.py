"""Criterions by the names of Torch7 and PyTorch."""
