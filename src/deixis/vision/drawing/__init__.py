"""Everything that is drawn with Pillow: boxes on pictures, captions in the colours of their chains, whole pages.

`palette`: colours. `typesetting`: captions in lines. `outlines`: boxes with labels. `pages`: pictures with their
annotations, groundings, alignments, proposals, descriptions and comparisons.
"""
