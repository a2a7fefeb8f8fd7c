"""Launches of compiled code: blocks of words, native calls, scratch memory."""
