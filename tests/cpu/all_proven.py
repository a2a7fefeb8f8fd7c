"""A machine on which LLVM has compiled every kind of text: nothing is left to another process."""


class AllProven:
    """In the place of :class:`symdnn.cpu.compiler.proven.Proven`."""

    def has(self, kinds):
        return True

    def add(self, kinds):
        raise AssertionError("what is proven is not noted again")
