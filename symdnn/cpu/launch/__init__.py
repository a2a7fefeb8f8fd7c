"""Launches of compiled code: parameter blocks, calls without Python, scratch memory."""
