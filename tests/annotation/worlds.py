"""Small annotated corpora for the tests: what is true of a few made-up pictures."""

from __future__ import annotations

from random import Random

from deixis.corpus import Box, Chain, Corpus, Image, Phrase, make_caption, make_image

NOUNS = {
    "people": ["man", "woman", "boy", "girl"],
    "clothing": ["shirt", "hat"],
    "animals": ["dog", "horse"],
    "other": ["ball", "bench", "sign"],
    "scene": ["street", "park"],
}


def made_up_image(number: int, chance: Random, captions: int = 5) -> Image:
    """An image of a few entities; each caption names some of them once. Scenes have no box."""
    entities = [
        (type_, noun) for type_, nouns in NOUNS.items() for noun in chance.sample(nouns, chance.randint(0, 2))
    ] or [("people", "man")]
    boxes: list[Box] = []
    chains = []
    for index, (type_, _) in enumerate(entities):
        own = []
        for _ in range(0 if type_ == "scene" else chance.randint(1, 3)):
            # Cells of a grid: no two boxes overlap, so merging joins none of them.
            column, row = len(boxes) % 10, len(boxes) // 10
            own.append(len(boxes))
            boxes.append(Box(column * 50 + 5, row * 50 + 5, column * 50 + 45, row * 50 + 45))
        chains.append(Chain(str(index + 1), tuple(own), scene=not own))
    texts = []
    for _ in range(captions):
        words: list[str] = []
        phrases = []
        for index in sorted(chance.sample(range(len(entities)), chance.randint(1, len(entities)))):
            type_, noun = entities[index]
            phrase = chance.choice([["a", noun], ["the", "big", noun], [noun]])
            phrases.append(Phrase(len(words), len(words) + len(phrase), str(index + 1), (type_,)))
            words += [*phrase, "with"]
        texts.append(make_caption(" ".join(words), words, phrases))
    mentioned = {phrase.chain for caption in texts for phrase in caption.phrases}
    chains = [chain for chain in chains if chain.id in mentioned]
    used = sorted({index for chain in chains for index in chain.boxes})
    chains = [Chain(c.id, tuple(used.index(i) for i in c.boxes), scene=c.scene) for c in chains]
    return make_image(
        f"image{number}",
        file=f"image{number}.jpg",
        width=500,
        height=500,
        captions=texts,
        boxes=[boxes[index] for index in used],
        chains=chains,
    )


def made_up_corpus(count: int, seed: int = 0, first: int = 0) -> Corpus:
    chance = Random(seed)
    return Corpus([made_up_image(first + number, chance) for number in range(count)], name="made up")
