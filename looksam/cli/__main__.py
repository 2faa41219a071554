"""``python -m looksam.cli`` is ``looksam``."""

import sys

from looksam.cli import main

if __name__ == "__main__":
    sys.exit(main())
