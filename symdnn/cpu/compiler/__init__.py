"""LLVM: from text to machine code, its cache on disk, its loader, a second process."""
