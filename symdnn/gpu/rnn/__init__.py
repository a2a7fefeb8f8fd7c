"""Recurrent networks by cuDNN."""
