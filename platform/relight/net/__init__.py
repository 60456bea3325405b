"""Talking to others over a network: callers, listeners, the one Kubernetes client.

May live here: HTTP callers, listen sockets, TLS material. May not: what is said over them.
"""
