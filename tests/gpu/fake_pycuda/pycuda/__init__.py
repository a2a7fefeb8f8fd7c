"""What symdnn uses of PyCUDA, for tests where it is not installed: the same calls of the driver."""
