"""The kit that users' own tests can rely on: a running platform as a context manager, free ports, waiting.

May live here: what tests of functions need. May not: relight's own test data.
"""
