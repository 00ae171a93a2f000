"""Hierarchical multimodal LSTM for dense visual-semantic embedding (Niu et al.)."""
