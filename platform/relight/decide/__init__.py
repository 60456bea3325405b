"""Decisions: (state, observation, now) -> decision, pure, tested by tables.

May live here: scaling, admission, traffic split, filters, delivery, placement. May not: reading a clock, I/O, threads;
time is always an argument, in seconds.
"""
