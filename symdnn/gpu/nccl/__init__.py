"""Collectives of arrays on GPUs, by NCCL."""
