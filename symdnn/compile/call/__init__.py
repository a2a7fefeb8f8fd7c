"""What a call does: arguments, the fast path, the function that users hold."""
