"""A module that ends the program that imports it."""

import sys

sys.exit("not here")
