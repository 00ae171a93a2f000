"""What a conversion to another format would lose, computed from its `keep` before anything is written."""

from __future__ import annotations

from collections import Counter

from deixis.corpus.records import Corpus


def losses(corpus: Corpus, converted: Corpus) -> dict[str, tuple[int, int]]:
    """What `corpus` has and `converted` lacks: name → (number lost, number in `corpus`), in the records' order."""
    counts_before, counts_after = _contents(corpus), _contents(converted)
    lost = {
        name: (count - counts_after[name], count) for name, count in counts_before.items() if counts_after[name] < count
    }
    changed = 0
    for image in corpus:
        if image.id in converted:
            pairs = zip(image.captions, converted[image.id].captions, strict=False)
            changed += sum(before.text != after.text for before, after in pairs)
    if changed:
        lost["spellings of captions"] = (changed, counts_before["captions"])
    kept_ids = [image.id for image in converted]
    if [image.id for image in corpus if image.id in converted] != kept_ids:
        lost["positions in the list of images"] = (len(kept_ids), len(corpus))
    return lost


def _contents(corpus: Corpus) -> Counter[str]:
    counts: Counter[str] = Counter()
    for image in corpus:
        counts["images"] += 1
        counts["splits of images"] += bool(image.split)
        counts["sizes of images"] += bool(image.width or image.height)
        counts["first publisher's ids"] += bool(image.source_id)
        counts["captions"] += len(image.captions)
        for caption in image.captions:
            counts["caption ids"] += bool(caption.id)
            counts["marks of unrelated captions"] += caption.unrelated
            counts["tokenizations that are not plain blanks"] += caption.words is not None
            counts["phrases"] += len(caption.phrases)
            counts["types of phrases"] += sum(len(phrase.types) for phrase in caption.phrases)
        counts["boxes"] += len(image.boxes)
        counts["chains"] += len(image.chains)
        for chain in image.chains:
            counts["links from chains to boxes"] += len(chain.boxes)
            counts["scene flags"] += chain.scene
            counts["no-box flags"] += chain.no_box
            counts["labels of chains"] += bool(chain.label)
    return counts
