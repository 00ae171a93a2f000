"""`deixis localize`: draw where trained runs localize phrases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import SCORED_SPLIT, CorpusOfRun, Device, Features, Force, Json, PicturesIn, Seed, Split
from deixis.cli.output import busy, print_json, run_corpus
from deixis.cli.output_files import check_drawing, write_drawing
from deixis.errors import DeixisError

if TYPE_CHECKING:
    import torch

    from deixis.corpus import Corpus, Image
    from deixis.features.store import FeatureStore
    from deixis.metrics.localization import Localizer
    from deixis.vision.drawing.pages import Example

app = typer.Typer(no_args_is_help=True, help="Draw where trained runs localize phrases.")


@app.callback()
def _group() -> None:
    """Keeps `compare` a subcommand although it is the only one."""


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs, drawn from top to bottom.")],
    corpus: CorpusOfRun = None,
    pictures_in: PicturesIn = None,
    features: Features = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            metavar="ID[:CAPTION]",
            help="An image, and which of its captions; may be repeated.",
            show_default="random",
        ),
    ] = None,
    split: Split = SCORED_SPLIT,
    count: Annotated[int, typer.Option(min=1, max=6, help="How many random captions, if no image is named.")] = 3,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(metavar="PNG", help="The file to write.")] = Path("comparison.png"),
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw the regions that several runs choose for the phrases of the same captions, one run above the other.

    A solid outline is a correct region (IoU of at least 0.5), a dashed outline a wrong one; scores are in brackets.
    Without --image, captions with at least three phrases are chosen at random, whatever the runs find.

    Example: deixis localize compare runs/cca runs/similarity --corpus joined/ --features edge200.features
    """
    check_drawing(out, force)
    from deixis.features.store import FeatureStore
    from deixis.figures.localization_comparison import found_phrases
    from deixis.training.run_models import read_recipe
    from deixis.vision.drawing.pages import Example, draw_comparison
    from deixis.vision.learned_proposals import checked_device
    from deixis.vision.reading import read_picture

    target = checked_device(device)
    opened = run_corpus(runs[-1], read_recipe(runs[-1]), corpus, pictures_in)
    stores = [FeatureStore(path) for path in features or []]
    chosen = _named(opened, images) if images else _random_captions(opened, split, count, seed)
    names = _names(runs)
    with busy("Localizing"):
        localizers = [run_localizer(run, opened, stores, target) for run in runs]
        examples = [
            Example(
                image,
                read_picture(opened, image),
                image.captions[caption],
                tuple(found_phrases(image, caption, localize) for localize in localizers),
            )
            for image, caption in chosen
        ]
        drawing = draw_comparison(names, examples)
    write_drawing(drawing, out)
    if json:
        print_json({"out": str(out), "examples": [_as_data(example, names) for example in examples]})
        return
    typer.echo(f"Drew {len(examples)} captions to {out} ({drawing.width} × {drawing.height})")


def _named(corpus: Corpus, names: Sequence[str]) -> list[tuple[Image, int]]:
    """Images by id, with an optional caption number (ID:2); the first caption is 0."""
    chosen = []
    for name in names:
        image_id, colon, digits = name.rpartition(":")
        if name in corpus or not colon or not digits.isdigit():
            image_id, digits = name, "0"
        chosen.append((corpus[image_id], int(digits)))
    return chosen


def _random_captions(corpus: Corpus, split: str, count: int, seed: int) -> list[tuple[Image, int]]:
    import numpy as np

    from deixis.figures.localization_comparison import captions_with_boxes

    captions = captions_with_boxes(corpus.split(split).images, phrases=3)
    if len(captions) < count:
        raise DeixisError(f"split {split!r} has only {len(captions)} captions with three phrases that have boxes")
    shuffled = [captions[position] for position in np.random.default_rng(seed).permutation(len(captions))]
    # A second caption of the same picture is used only if there are too few pictures.
    first = {image.id: caption for image, caption in reversed(shuffled)}
    return sorted(shuffled, key=lambda pair: first[pair[0].id] != pair[1])[:count]


def run_localizer(run: Path, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> Localizer:
    """The localizer of a run: over stored regions, as many as its recipe ranks, or over the pictures themselves."""
    from deixis.loading import load_model
    from deixis.metrics.protocols import Pictures, mention_localizer, phrase_localizer
    from deixis.training.inputs import find_store
    from deixis.training.kinds import kind_of
    from deixis.training.run_models import read_recipe
    from deixis.training.running import stores_for

    model = load_model(run, device.type)
    if "localize" not in model.abilities:
        raise model.cannot("localize")
    if not model.localizes_features:
        return mention_localizer(model, corpus)
    recipe = read_recipe(run)
    try:
        regions = find_store(stores or stores_for(recipe, corpus, device=device.type), "proposals")
    except DeixisError:
        if any(features.regions for features in kind_of(recipe.kind).features(recipe, run)):
            raise
        raise DeixisError(f"{run} knows only whole pictures ({recipe.kind}), so it cannot localize") from None
    regions_kept = kind_of(recipe.kind).regions_kept(recipe)
    return phrase_localizer(model, Pictures(corpus, None, regions, learned_from_boxes=True, regions_kept=regions_kept))


def _names(runs: Sequence[Path]) -> list[str]:
    """A name for each run: that of its folder, or its path where folders have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(runs) else [str(run) for run in runs]


def _as_data(example: Example, names: Sequence[str]) -> dict[str, object]:
    return {
        "image": example.image.id,
        "caption": example.caption.text,
        "found": {
            name: [
                {
                    "phrase": example.caption.phrase_text(localized.phrase),
                    "box": localized.box,
                    "score": localized.score,
                    "right": localized.right,
                }
                for localized in phrases
            ]
            for name, phrases in zip(names, example.found, strict=True)
        },
    }
