"""Deep visual-semantic alignments for generating image descriptions (Karpathy and Fei-Fei)."""
