"""Two-branch neural networks for image-text matching (Wang et al.)."""
