"""A function that cannot be imported."""

raise RuntimeError("a library is missing")
