"""`deixis localize`: where trained models find phrases in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.evaluate_run import CorpusOfRun
from deixis.cli.options import Device, Force, Json
from deixis.cli.output import busy, print_json, run_corpus
from deixis.cli.output_files import check_free, system_faults
from deixis.errors import DeixisError

if TYPE_CHECKING:
    import torch

    from deixis.corpus import Corpus, Image
    from deixis.features import FeatureStore
    from deixis.metrics.localization import Localizer
    from deixis.vision.localization_drawing import Example

app = typer.Typer(no_args_is_help=True, help="Draw where trained runs localize phrases.")


@app.callback()
def _group() -> None:
    """Keep `compare` a command of its own while it is the only one."""


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="The runs whose regions are drawn, from top to bottom.")
    ],
    corpus: CorpusOfRun = None,
    pictures_in: Annotated[
        Path | None, typer.Option(help="A folder or zip of pictures that are kept elsewhere.")
    ] = None,
    features: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="STORE", help="A feature store of the corpus' regions; may be repeated.", show_default="as kept"
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[:CAPTION]", help="An image, and which of its captions; may be repeated.", show_default=False
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Where captions are drawn at random from, if no image is named; `all` for all of it.")
    ] = "val",
    count: Annotated[int, typer.Option(min=1, max=6, help="How many captions are drawn at random.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the random choice.")] = 0,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("comparison.png"),
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw the best regions of runs for the phrases of the same captions, one run above the other.

    A region with a solid outline is right, one with a dashed outline wrong; scores stand in brackets. Captions that
    are not named are drawn at random among those with three phrases or more, not chosen by what the runs find.

    Example: deixis localize compare runs/cca runs/similarity --corpus joined/ --features edge200.features
    """
    if out.suffix.lower() != ".png":
        raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
    check_free(out, force)
    from deixis.features import FeatureStore
    from deixis.figures.localization_comparison import found_phrases
    from deixis.files import atomic_write
    from deixis.training.run_models import read_recipe
    from deixis.vision.learned_proposals import checked_device
    from deixis.vision.localization_drawing import Example, draw_comparison
    from deixis.vision.reading import read_picture

    target = checked_device(device)
    opened = run_corpus(runs[-1], read_recipe(runs[-1]), corpus, pictures_in)
    stores = [FeatureStore(path) for path in features or []]
    chosen = _named(opened, image) if image else _drawn(opened, split, count, seed)
    with busy("Localizing"):
        localizers = [run_localizer(run, opened, stores, target) for run in runs]
        examples = [
            Example(
                own,
                read_picture(opened, own),
                own.captions[number],
                tuple(found_phrases(own, number, localize) for localize in localizers),
            )
            for own, number in chosen
        ]
        drawing = draw_comparison([run.name for run in runs], examples)
    with system_faults(out), atomic_write(out) as stream:
        drawing.save(stream, "PNG")
    if json:
        print_json({"out": str(out), "examples": [_as_data(example, runs) for example in examples]})
        return
    typer.echo(f"Drew {len(examples)} captions to {out} ({drawing.width} × {drawing.height})")


def _named(corpus: Corpus, names: Sequence[str]) -> list[tuple[Image, int]]:
    """Images by id, or by id and caption number, which may be left out for the first."""
    chosen = []
    for name in names:
        image_id, colon, number = name.rpartition(":")
        if name in corpus or not colon or not number.isdigit():
            image_id, number = name, "0"
        chosen.append((corpus[image_id], int(number)))
    return chosen


def _drawn(corpus: Corpus, split: str, count: int, seed: int) -> list[tuple[Image, int]]:
    import numpy as np

    from deixis.figures.localization_comparison import captions_with_boxes

    known = captions_with_boxes(corpus.split(split).images, phrases=3)
    if len(known) < count:
        raise DeixisError(f"split {split!r} has {len(known)} captions with three phrases that have boxes")
    drawn = [known[number] for number in np.random.default_rng(seed).permutation(len(known))]
    # Another caption of a picture comes only where there are too few pictures.
    first = {image.id: caption for image, caption in reversed(drawn)}
    return sorted(drawn, key=lambda one: first[one[0].id] != one[1])[:count]


def run_localizer(run: Path, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> Localizer:
    """What a run localizes with: stored regions, as many as its recipe ranks, or the pictures themselves."""
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
        found = find_store(stores or stores_for(recipe, corpus, device=device.type), "proposals")
    except DeixisError:
        if any(features.regions for features in kind_of(recipe.kind).features(recipe, run)):
            raise
        raise DeixisError(f"{run} knows whole pictures alone ({recipe.kind}), no regions to point at") from None
    kept = kind_of(recipe.kind).regions_kept(recipe)
    return phrase_localizer(model, Pictures(corpus, None, found, learned_from_boxes=True, regions_kept=kept))


def _as_data(example: Example, runs: Sequence[Path]) -> dict[str, object]:
    return {
        "image": example.image.id,
        "caption": example.caption.text,
        "found": {
            run.name: [
                {
                    "phrase": example.caption.phrase_text(one.phrase),
                    "box": one.box,
                    "score": one.score,
                    "right": one.right,
                }
                for one in found
            ]
            for run, found in zip(runs, example.found, strict=True)
        },
    }
