"""From pixels to features: safe picture reading, drawing, crops, backbones, proposals, region features.

Nothing of the networks is imported here, so that reading or drawing a picture never waits for them.
"""

#: Before the file of a trained tower, where a backbone is named.
TOWER = "tower:"
