"""The faces of a function: one module per host, each thin.

May live here: turning a host's request into a wire request and a wire response into the host's. May not: endpoints.
"""
