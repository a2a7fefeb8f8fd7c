"""The cache on disk: atomic writes, trusted folders, entries with checksums, a bound of its size.

:mod:`~symdnn.disk.atomic` writes files, :mod:`~symdnn.disk.trust` decides which folders and files
are trusted, :mod:`~symdnn.disk.store` has entries with a checksum, :mod:`~symdnn.disk.space`
bounds, lists and clears them, :mod:`~symdnn.disk.identity` hashes sources and libraries for keys,
and :mod:`~symdnn.disk.object_file` checks that machine code is not damaged.
"""
