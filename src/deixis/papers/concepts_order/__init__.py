"""Semantic concepts and order for image and sentence matching (Huang et al.)."""
