"""`deixis figures snippets` and `deixis figures vocabulary`: what DVSA finds in a whole corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.align import load_aligner
from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusOfRun,
    Device,
    Drawing,
    Features,
    Force,
    Json,
    PicturesIn,
    RunFolder,
    RunModel,
    Split,
)
from deixis.cli.output_files import check_drawing, write_drawing
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.corpus import Corpus, Image
    from deixis.features.store import FeatureStore
    from deixis.papers.dvsa.model import FoundRegion

app = typer.Typer(no_args_is_help=True, help="Word statistics of a trained DVSA model.")

#: A drawing has room for this many regions.
MOST = 64


@app.callback()
def _group() -> None:
    """Keeps `magnitudes` a subcommand although it is the only one."""


def snippets(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help='Pieces of text, such as "red bus".')],
    run: RunModel,
    corpus: CorpusOfRun = None,
    features: Features = None,
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    count: Annotated[int, typer.Option(min=1, max=MOST, help="Regions per text.")] = 8,
    out: Drawing = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the regions of a corpus that match a text best, at most one per picture.

    Example: deixis figures snippets "red bus" "yellow bus" --model runs/brnn --corpus joined/ --out buses.png
    """
    check_drawing(out, force)
    from deixis.cli.output import busy, print_json, print_table, track
    from deixis.model import store_images
    from deixis.text.tokens import tokens_of

    with busy("Reading"):
        model = load_aligner(run, device)
    opened, images, store = collection(run, corpus, features, pictures_in, split, device, shown=out is not None)
    asked = [tokens_of(text) for text in texts]
    if not all(asked):
        raise DeixisError("a text has no words")
    for text, tokens in zip(texts, asked, strict=True):
        if len(model.unknown_words(tokens)) == len(tokens):
            raise DeixisError(f"{run} does not know any word of {text!r}")
    seen = track(store_images(store, [image.id for image in images]), "Looking", len(images))
    regions_of_texts = list(zip(texts, model.find_regions(seen, asked, count, of_one=1), strict=True))
    if out is not None:
        _draw(opened, images, store, [(f"“{text}”", regions) for text, regions in regions_of_texts], out)
    if as_json:
        print_json({text: _as_data(images, regions) for text, regions in regions_of_texts})
        return
    for text, regions in regions_of_texts:
        print_table(text, ["image", "box", "score"], _rows(images, regions))
    if out is not None:
        typer.echo(f"Drawn to {out}")


@app.command()
def magnitudes(
    run: RunFolder,
    corpus: CorpusOfRun = None,
    features: Features = None,
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    count: Annotated[
        int, typer.Option(min=1, max=MOST, help="How many words at either end, and how many regions.")
    ] = 40,
    out: Drawing = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List the words with the largest and smallest mean magnitude, and the regions with the largest.

    Words come from all captions of the corpus; those that occur fewer than five times are left out. Regions come from
    one split, at most one per picture.

    Example: deixis figures vocabulary magnitudes runs/brnn --corpus joined/ --out regions.png
    """
    check_drawing(out, force)
    from deixis.cli.output import busy, print_json, print_table, track
    from deixis.model import store_images
    from deixis.text.tokens import tokens_of_captions

    with busy("Reading"):
        model = load_aligner(run, device)
    opened, images, store = collection(run, corpus, features, pictures_in, split, device, shown=out is not None)
    with busy("Reading words"):
        words = model.word_magnitudes(tokens_of_captions(opened))
    seen = track(store_images(store, [image.id for image in images]), "Looking", len(images))
    regions = model.longest_regions(seen, count, of_one=1)
    greatest, least = words[:count], words[::-1][:count]
    if out is not None:
        _draw(opened, images, store, [("Regions of greatest magnitude", regions)], out)
    if as_json:
        extremes = {"greatest": [word._asdict() for word in greatest], "least": [word._asdict() for word in least]}
        print_json({"words": extremes, "regions": _as_data(images, regions)})
        return
    rows = [
        [small.word, f"{small.magnitude:.2f}", large.word, f"{large.magnitude:.2f}"]
        for small, large in zip(least, greatest, strict=True)
    ]
    print_table("Mean magnitude of words", ["least", "magnitude", "greatest", "magnitude"], rows)
    print_table("Regions of greatest magnitude", ["image", "box", "magnitude"], _rows(images, regions))
    if out is not None:
        typer.echo(f"Drawn to {out}")


def collection(
    run: Path,
    corpus: str | None,
    features: Sequence[Path] | None,
    pictures_in: Path | None,
    split: str,
    device: str,
    *,
    shown: bool,
) -> tuple[Corpus, list[Image], FeatureStore]:
    """The corpus, the images of a split that have features, and the store of their regions.

    Args:
        shown: the pictures will be drawn, so their files are needed.
    """
    from deixis.cli.output import run_corpus, run_stores
    from deixis.training.inputs import find_store
    from deixis.training.run_models import read_recipe

    recipe = read_recipe(run)
    opened = run_corpus(run, recipe, corpus, pictures_in)
    store = find_store(run_stores(run, recipe, opened, features, device), "proposals")
    chosen = opened.split(split)
    images = [image for image in chosen if image.id not in store.skipped]
    if not images:
        raise DeixisError(f"split {split!r} of {corpus} has no images with features")
    if shown and (opened.pictures is None or not all(map(opened.pictures.has, images))):
        raise DeixisError(f"{corpus} lacks pictures of split {split!r}; give their folder with --pictures-in")
    return opened, images, store


def _rows(images: Sequence[Image], regions: Sequence[FoundRegion]) -> list[list[str]]:
    return [
        [images[region.image].id, ", ".join(f"{side:.0f}" for side in region.box), f"{region.score:.2f}"]
        for region in regions
    ]


def _as_data(images: Sequence[Image], regions: Sequence[FoundRegion]) -> list[dict[str, Any]]:
    return [{"image": images[region.image].id, "box": region.box, "score": region.score} for region in regions]


def _draw(
    corpus: Corpus,
    images: Sequence[Image],
    store: FeatureStore,
    rows: Sequence[tuple[str, Sequence[FoundRegion]]],
    out: Path,
) -> None:
    from deixis.corpus import Box
    from deixis.model import store_images
    from deixis.vision.drawing.pages import Cut, draw_regions
    from deixis.vision.reading import read_picture

    cuts = []
    for heading, regions in rows:
        row = []
        for region in regions:
            image = images[region.image]
            picture = read_picture(corpus, image)
            # Boxes are in pixels of the pictures that features were extracted from; this copy may be smaller.
            width, height = next(store_images(store, [image.id])).size
            box = Box(*region.box).scaled(picture.width / width, picture.height / height)
            row.append(Cut(picture, box, f"{region.score:.2f}"))
        cuts.append((heading, row))
    write_drawing(draw_regions(cuts), out)
