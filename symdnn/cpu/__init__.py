"""The CPU target: this version runs every op by NumPy."""
