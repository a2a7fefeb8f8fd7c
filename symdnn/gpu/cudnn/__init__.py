"""Kernels that call cuDNN: small families, their base class, plans of its graph API."""
