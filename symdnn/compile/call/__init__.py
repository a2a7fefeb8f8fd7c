"""The compiled function that users call: its arguments, and the fast path of repeated calls."""
