"""Functions of numbers as LLVM IR: without branches, or written on the lanes of a vector."""
