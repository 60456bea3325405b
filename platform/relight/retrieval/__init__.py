"""Vector search: splitting, the vector store seam with its Milvus driver, ranking.

May live here: what retrieval functions share. May not: HTTP, events, processes.
"""
