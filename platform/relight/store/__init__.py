"""Object storage, the model repository's manifest, and the cache on the node.

May live here: the storage seam and its drivers, push and fetch, digests. May not: knowledge of what a model computes.
"""
