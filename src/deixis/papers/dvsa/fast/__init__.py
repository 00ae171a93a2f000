"""Scores of all pairs of pictures and sentences on a GPU; `reference.py` is what it is tested against."""
