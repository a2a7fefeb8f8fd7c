"""Other libraries' module paths, for programs that were written for them."""
