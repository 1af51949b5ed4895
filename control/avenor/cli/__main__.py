"""`python -m avenor.cli`: the command, where its script is not on the path."""

import sys

from avenor.cli import main

if __name__ == "__main__":
    sys.exit(main())
