"""Inside a function's process: models, steps, lifecycle, endpoints, hosts.

May live here: what one function needs to answer. May not: anything about other functions, scaling or routing.
"""
