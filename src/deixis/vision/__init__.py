"""From pixels to features: safe picture reading, drawing, crops, backbones, proposals, region features.

No network is imported here, so that reading or drawing a picture does not wait for PyTorch.
"""

from typing import Annotated

from msgspec import Meta, Struct

#: Prefix of a backbone that is the file of a trained tower.
TOWER = "tower:"
#: Prefix of a backbone that is the file of a trained detector.
DETECTOR = "detector:"


class EdgeBoxesSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of EdgeBoxes, by the names of its paper; without them, those chosen on validation pictures are used.

    β decides how many boxes are close together: with β 0.55 a phrase of Flickr8k has 0.5 boxes of IoU ≥ 0.7 among 200,
    with 0.75 it has 1.9, and the share of phrases with a box of IoU ≥ 0.5 falls by six points.
    """

    #: β: of two boxes with a larger IoU, the one with the lower score is dropped.
    beta: Annotated[float, Meta(gt=0, le=1)] = 0.75
    #: γ: how sharply the affinity of two edges falls with the angle between them.
    gamma: Annotated[float, Meta(gt=0)] = 2.0
    #: Pictures are resized to this longer side in pixels; 0: they keep their size.
    longer_side: Annotated[int, Meta(ge=0, le=4096)] = 0
