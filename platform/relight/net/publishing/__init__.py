"""Events back to message brokers: one publisher per kind of broker, each confirmed by the broker before it returns.

May live here: connections to brokers, and how an event is written in each one's own form. May not: which events are
published, and what happens to one that is not taken.
"""
