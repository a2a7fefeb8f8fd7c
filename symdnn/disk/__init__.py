"""What is kept on disk: whom it is believed from, how it is written, found again and bounded.

:mod:`~symdnn.disk.atomic` writes files, :mod:`~symdnn.disk.trust` says which folders and files are
believed, :mod:`~symdnn.disk.store` keeps entries with a checksum, :mod:`~symdnn.disk.space` bounds,
lists and clears them, :mod:`~symdnn.disk.identity` says what sources and libraries an entry was
made by, and :mod:`~symdnn.disk.object_file` whether machine code is whole.
"""
