"""Whether the boxes of plurals ("two dogs") are those that people drew.

    python benchmarks/plurals.py FLICKR8K ANNOTATIONS [--split test] [--pictures 120] [--tried]
        [--json results/search/plurals.json]

ANNOTATIONS is the zip of Flickr30k Entities. Asked are the plural phrases of captions (`deixis.adapters.plural_boxes`)
that have boxes, in pictures drawn from those with a plural of two boxes or more. A box is right if its intersection
over union with an annotated one, which no other has, is at least 0.5. F1 is that of a phrase's boxes, averaged over
phrases, `one_box` what the whole phrase's box alone would have. --tried compares settings, for the validation split.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from reporting import write_report

from deixis.adapters.onnx_grounding import OnnxGrounder
from deixis.adapters.plural_boxes import POWER, SHARE, choose_boxes, one_of
from deixis.base.bundle_model import BundleModel
from deixis.corpus import join, open_corpus
from deixis.corpus.boxes import iou_matrix
from deixis.loading import load_model
from deixis.metrics.results import versions
from deixis.model import Mention
from deixis.text.tokens import tokens_of
from deixis.vision.reading import read_picture

HIT = 0.5
TRIED = tuple((share, power) for share in (0.05, 0.1, 0.15, 0.3) for power in (0.3, 0.5, 1.0))

Boxes = NDArray[Any]


class Plural(NamedTuple):
    truth: Boxes
    whole: Boxes
    boxes: Boxes
    logits: NDArray[Any]
    most: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K")
    parser.add_argument("annotations", metavar="ANNOTATIONS")
    parser.add_argument("--split", default="test")
    parser.add_argument("--pictures", type=int, default=120)
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--tried", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    model = load_model(options.model)
    assert isinstance(model, BundleModel)
    plurals = asked(model, options.flickr8k, options.annotations, options.split, options.pictures)
    record: dict[str, Any] = {
        "model": str(model.identity),
        "split": options.split,
        "pictures": options.pictures,
        "all": figures(plurals),
        "with_a_number": figures([each for each in plurals if each.most < 8]),
        "with_two_boxes_or_more": figures([each for each in plurals if len(each.truth) > 1]),
    }
    if options.tried:
        tried = {f"share {share}, power {power}": figures(plurals, share, power)["f1"] for share, power in TRIED}
        record["tried"] = tried
    record["seconds"] = round(time.perf_counter() - start, 1)
    record["command"] = f"python benchmarks/plurals.py FLICKR8K ANNOTATIONS --split {options.split}"
    record["versions"] = versions()
    write_report(record, options.json)


def asked(model: BundleModel, flickr8k: str, annotations: str, split: str, count: int) -> list[Plural]:
    corpus = open_corpus(flickr8k)
    joined = join(corpus, open_corpus(annotations)).corpus
    images = []
    for image in joined.split(split):
        phrases = []
        for caption in image.captions:
            for phrase in caption.phrases:
                mention = Mention(tokens_of(caption), phrase.start, phrase.end)
                one, boxes = one_of(mention), image.chain_boxes(phrase.chain)
                if one is not None and boxes:
                    phrases.append((mention, one, np.array([(box.x1, box.y1, box.x2, box.y2) for box in boxes])))
        if any(len(boxes) > 1 for _, _, boxes in phrases):
            images.append((image, phrases))
    grounder, plurals = model._grounder, []
    assert isinstance(grounder, OnnxGrounder)
    for place in np.random.default_rng(0).permutation(len(images))[:count].tolist():
        image, phrases = images[place]
        seen = grounder.look(read_picture(corpus, image))
        size = np.array([image.width, image.height] * 2)
        whole, logits = grounder._point(seen, [mention for mention, _, _ in phrases])
        singular_boxes, single = grounder._point(seen, [one.tokens for _, one, _ in phrases])
        for row, (_, one, truth) in enumerate(phrases):
            best = whole[row, [int(logits[row].argmax())]]
            plurals.append(Plural(truth / size, best, singular_boxes[row], single[row], one.most))
    return plurals


def figures(plurals: list[Plural], share: float = SHARE, power: float = POWER) -> dict[str, Any]:
    scores, one_box, right, said, there = [], [], 0, 0, 0
    for plural in plurals:
        chosen = choose_boxes(plural.boxes, plural.logits, plural.most, share, power)
        boxes = plural.boxes[chosen] if len(chosen) > 1 else plural.whole
        hits = matched(boxes, plural.truth)
        scores.append(2 * hits / (len(boxes) + len(plural.truth)))
        one_box.append(2 * matched(plural.whole, plural.truth) / (1 + len(plural.truth)))
        right, said, there = right + hits, said + len(boxes), there + len(plural.truth)
    return {
        "phrases": len(plurals),
        "f1": round(float(np.mean(scores)), 4),
        "precision": round(right / said, 4),
        "recall": round(right / there, 4),
        "one_box": {"f1": round(float(np.mean(one_box)), 4)},
    }


def matched(boxes: Boxes, truth: Boxes) -> int:
    """Pairs of a box and an annotated one, each in one pair at most, the best first."""
    overlaps, count = iou_matrix(boxes, truth), 0
    while overlaps.size and overlaps.max() >= HIT:
        row, column = np.unravel_index(overlaps.argmax(), overlaps.shape)
        overlaps = np.delete(np.delete(overlaps, row, 0), column, 1)
        count += 1
    return count


if __name__ == "__main__":
    main()
