"""LLVM: text to machine code, its cache on disk, a loader, a process that compiles ahead."""
