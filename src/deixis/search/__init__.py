"""Search over a person's own pictures: the collection on disk, queries, relevance.

Nothing is imported here, and nothing on a query's path imports PyTorch or spaCy.
"""
