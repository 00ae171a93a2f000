"""The H-LSTM for whole batches of trees, level by level; `reference.py` is what it is tested against."""
