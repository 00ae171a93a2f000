"""From pixels to features: safe picture reading, drawing, crops, backbones, proposals, region features.

No network is imported here, so that reading or drawing a picture does not wait for PyTorch.
"""

#: Prefix of a backbone that is the file of a trained tower.
TOWER = "tower:"
#: Prefix of a backbone that is the file of a trained detector.
DETECTOR = "detector:"
