"""Retrieval: splitting, encoding, the vector store seam with its three drivers, hybrid search, reranking, quality.

May live here: what retrieval functions and their commands share, calls of the next step among it. May not: listening,
the handling of events, processes.
"""
