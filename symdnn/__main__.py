"""``python -m symdnn`` is the command ``symdnn``."""

import sys

from symdnn.cli import main

sys.exit(main())
