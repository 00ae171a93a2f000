"""`deixis figures snippets` and `deixis figures vocabulary`: what an aligner (DVSA) finds in a whole corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.align import (
    check_drawing,
    load_aligner,
    write_drawing,
)
from deixis.cli.evaluate_run import CorpusOfRun
from deixis.cli.options import Device, Force, Json, RunModel
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.corpus import Corpus, Image
    from deixis.features import FeatureStore
    from deixis.papers.dvsa.model import FoundRegion

app = typer.Typer(no_args_is_help=True, help="Word statistics of a trained aligner.")

FeaturesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--features", metavar="STORE", help="A feature store of it; may be repeated.", show_default="extracted and kept"
    ),
]
PicturesOption = Annotated[
    Path | None,
    typer.Option(
        "--pictures-in",
        metavar="PATH",
        help="A folder or zip of its pictures, where they are not beside it.",
        show_default=False,
    ),
]
SplitOption = Annotated[str, typer.Option(help="Its split; `all` for all of it.")]
#: Regions for which a drawing has room.
MOST = 64


@app.callback()
def _group() -> None:
    """Keep `magnitudes` a command of its own while it is the only one."""


def snippets(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help='Pieces of text, such as "red bus".')],
    run: RunModel,
    corpus: CorpusOfRun = None,
    features: FeaturesOption = None,
    pictures_in: PicturesOption = None,
    split: SplitOption = "test",
    count: Annotated[int, typer.Option(min=1, max=MOST, help="Regions of a text.")] = 8,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the regions.", show_default=False)] = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the regions of a whole collection that fit pieces of text best, one of a picture at most.

    Example: deixis figures snippets "red bus" "yellow bus" --model runs/brnn --corpus joined/ --out buses.png
    """
    if out is not None:
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
            raise DeixisError(f"{run} knows no word of {text!r}")
    seen = track(store_images(store, [image.id for image in images]), "Looking", len(images))
    found = model.find_regions(seen, asked, count, of_one=1)
    if out is not None:
        _draw(opened, images, store, list(zip((f"“{text}”" for text in texts), found, strict=True)), out)
    if as_json:
        print_json({text: _as_data(images, own) for text, own in zip(texts, found, strict=True)})
        return
    for text, own in zip(texts, found, strict=True):
        print_table(text, ["image", "box", "score"], _rows(images, own))
    if out is not None:
        typer.echo(f"Drawn to {out}")


@app.command()
def magnitudes(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished aligner.")],
    corpus: CorpusOfRun = None,
    features: FeaturesOption = None,
    pictures_in: PicturesOption = None,
    split: SplitOption = "test",
    count: Annotated[int, typer.Option(min=1, max=MOST, help="Words of either end, and regions.")] = 40,
    out: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the regions of greatest magnitude.", show_default=False)
    ] = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """The words of greatest and least mean magnitude, and the regions of greatest: what counts, and what hardly does.

    Words are read in the captions of the corpus, and told if they occur five times or more. Regions are those of one
    split, one of a picture at most.

    Example: deixis figures vocabulary magnitudes runs/brnn --corpus joined/ --out regions.png
    """
    if out is not None:
        check_drawing(out, force)
    from deixis.cli.output import busy, print_json, print_table, track
    from deixis.model import store_images
    from deixis.text.tokens import tokens_of

    with busy("Reading"):
        model = load_aligner(run, device)
    opened, images, store = collection(run, corpus, features, pictures_in, split, device, shown=out is not None)
    with busy("Reading words"):
        words = model.word_magnitudes([tokens_of(caption) for image in opened for caption in image.captions])
    seen = track(store_images(store, [image.id for image in images]), "Looking", len(images))
    regions = model.longest_regions(seen, count, of_one=1)
    greatest, least = words[:count], words[::-1][:count]
    if out is not None:
        _draw(opened, images, store, [("Regions of greatest magnitude", regions)], out)
    if as_json:
        told = {name: [each._asdict() for each in own] for name, own in (("greatest", greatest), ("least", least))}
        print_json({"words": told, "regions": _as_data(images, regions)})
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
    """A corpus, the images of a split that have features, and the store of their regions.

    Args:
        shown: their pictures will be drawn, so they must be there.
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
        raise DeixisError(f"{corpus} lacks pictures of split {split!r}; say where they are with --pictures-in")
    return opened, images, store


def _rows(images: Sequence[Image], found: Sequence[FoundRegion]) -> list[list[str]]:
    return [
        [images[each.image].id, ", ".join(f"{side:.0f}" for side in each.box), f"{each.score:.2f}"] for each in found
    ]


def _as_data(images: Sequence[Image], found: Sequence[FoundRegion]) -> list[dict[str, Any]]:
    return [{"image": images[each.image].id, "box": each.box, "score": each.score} for each in found]


def _draw(
    corpus: Corpus,
    images: Sequence[Image],
    store: FeatureStore,
    rows: Sequence[tuple[str, Sequence[FoundRegion]]],
    out: Path,
) -> None:
    from deixis.corpus import Box
    from deixis.model import store_images
    from deixis.vision.alignment_drawing import Cut, draw_regions
    from deixis.vision.reading import read_picture

    cuts = []
    for heading, found in rows:
        own = []
        for each in found:
            image = images[each.image]
            picture = read_picture(corpus, image)
            # Boxes are in the pixels of the pictures that were looked at; the one at hand may be smaller.
            width, height = next(store_images(store, [image.id])).size
            box = Box(*each.box).scaled(picture.width / width, picture.height / height)
            own.append(Cut(picture, box, f"{each.score:.2f}"))
        cuts.append((heading, own))
    write_drawing(draw_regions(cuts), out)
