"""What each protocol's paths answer, as functions of the engine and a request.

May live here: one module per protocol. May not: a host, a thread, the bytes of a protocol (those are wire's).
"""
