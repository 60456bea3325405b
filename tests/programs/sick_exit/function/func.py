"""A function that exits at once."""

import sys

sys.exit(0)
