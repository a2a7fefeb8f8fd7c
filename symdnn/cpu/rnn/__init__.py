"""Compiled recurrent layers."""
