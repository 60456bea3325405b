"""Message brokers as sources of events, by the resources that a cluster has for them.

May live here: one module per kind of broker, and what they share. May not: what happens to an event once it is ours.
"""
