"""Corpora for property tests: Unicode, empty captions, nested and touching phrases, shared boxes, odd ids."""

from __future__ import annotations

from hypothesis import strategies as st

from deixis.corpus import NOT_VISUAL, NOT_VISUAL_CHAIN, TYPES, Box, Chain, Corpus, Phrase, make_caption, make_image

#: Any text a token can be: no white space (by `str.split`), no control characters, no lone surrogates.
tokens = st.one_of(
    st.sampled_from(
        ["a", "man", "'s", "[", "]", "[/EN#1/people", "\\", "<&>", '"', "-", "#0", "t-shirt", "二人", "émigré", "."]
    ),
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6).filter(lambda t: t.split() == [t]),
)
identifiers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,11}", fullmatch=True)
chain_ids = st.integers(1, 400).map(str)


@st.composite
def spans(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    """Spans of which any two are apart, touch, are nested or are equal, but never cross."""
    found: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, length - 1))
        end = draw(st.integers(start + 1, length))
        if all(end <= a or start >= b or (a <= start and end <= b) or (start <= a and b <= end) for a, b in found):
            found.append((start, end))
    return found


@st.composite
def captions(draw: st.DrawFn, chains: list[str]):  # type: ignore[no-untyped-def]
    words = draw(st.lists(tokens, max_size=9))
    phrases = []
    for start, end in draw(spans(len(words))) if words else []:
        visual = bool(chains) and draw(st.booleans())
        types = (
            tuple(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True)))
            if visual
            else (NOT_VISUAL,)
        )
        phrases.append(Phrase(start, end, draw(st.sampled_from(chains)) if visual else NOT_VISUAL_CHAIN, types))
    return make_caption(" ".join(words), words, phrases, unrelated=draw(st.booleans()))


@st.composite
def images(draw: st.DrawFn, image_id: str):  # type: ignore[no-untyped-def]
    width, height = draw(st.integers(1, 640)), draw(st.integers(1, 640))
    boxes = []
    for _ in range(draw(st.integers(0, 4))):
        x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        boxes.append(Box(x1, y1, draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height))))
    chains = []
    used: set[int] = set()
    for chain_id in draw(st.lists(chain_ids, max_size=4, unique=True)):
        mine = draw(st.lists(st.integers(0, len(boxes) - 1), max_size=3, unique=True)) if boxes else []
        used |= set(mine)
        chains.append(Chain(chain_id, tuple(sorted(mine)), scene=draw(st.booleans()), no_box=draw(st.booleans())))
    # A box that no chain names means nothing in this data model; give such boxes to the last chain, or drop them.
    spare = tuple(sorted(set(range(len(boxes))) - used))
    if chains and spare:
        last = chains[-1]
        chains[-1] = Chain(last.id, tuple(sorted({*last.boxes, *spare})), scene=last.scene, no_box=last.no_box)
    elif not chains:
        boxes = []
    return make_image(
        image_id,
        file=f"{image_id}.jpg",
        width=width,
        height=height,
        split=draw(st.sampled_from(["train", "val", "test", ""])),
        captions=draw(st.lists(captions([chain.id for chain in chains]), max_size=5)),
        boxes=boxes,
        chains=chains,
    )


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    # Names that differ only in case would be one file on some systems.
    ids = draw(st.lists(identifiers, max_size=4, unique_by=str.lower))
    return Corpus([draw(images(image_id)) for image_id in ids], name="drawn")


@st.composite
def odd_corpora(draw: st.DrawFn) -> Corpus:
    """What other sources give: free text, own ids, labels, unknown sizes, boxes between pixels, paths as files."""
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    found = []
    for image_id in draw(st.lists(st.one_of(identifiers, st.integers(0, 10**9).map(str)), max_size=3, unique=True)):
        width, height = draw(st.sampled_from([(0, 0), (640, 480)]))
        boxes = []
        for _ in range(draw(st.integers(0, 2))):
            (x1, x2), (y1, y2) = (sorted(draw(st.tuples(st.floats(0, s), st.floats(0, s)))) for s in (640, 480))
            boxes.append(Box(x1, y1, x2, y2))
        labels = st.sampled_from(["", "dog", "traffic light"])
        captions = [
            make_caption(
                draw(texts),
                draw(st.one_of(st.none(), st.lists(texts, max_size=3))),
                id=draw(st.sampled_from(["", "7", "007", "x"])),
            )
            for _ in range(draw(st.integers(0, 3)))
        ]
        found.append(
            make_image(
                image_id,
                file=draw(
                    st.sampled_from(["", "a.jpg", "train/a.jpg", "/b/c d.png", "..\\e.JPG", " #1.jpg", "b.jpg.2"])
                ),
                width=width,
                height=height,
                split=draw(st.sampled_from(["", "train", "dev", "val", "restval", "train2017", "held-out"])),
                captions=captions,
                boxes=boxes,
                chains=[Chain(f"c{number}", (number,), label=draw(labels)) for number in range(len(boxes))],
                source_id=draw(st.sampled_from(["", "12345678", "not a number"])),
            )
        )
    return Corpus(found, name="odd")
