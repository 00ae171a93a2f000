"""`deixis figures map`: a map of the embedding space of a run (HM-LSTM, Fig. 8)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusOfRun,
    Device,
    Features,
    Force,
    Json,
    PicturesIn,
    RunFolder,
    Seed,
    Split,
)
from deixis.cli.output_files import check_free, system_faults
from deixis.errors import DeixisError


class Method(StrEnum):
    TSNE = "tsne"
    PCA = "pca"


def space_map(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="HTML", help="The page to write.")],
    corpus: CorpusOfRun = None,
    png: Annotated[Path | None, typer.Option(metavar="PNG", help="Also draw it as a picture.", show_default=False)] = (
        None
    ),
    pictures_in: PicturesIn = None,
    features: Features = None,
    split: Split = SCORED_SPLIT,
    count: Annotated[int, typer.Option(min=1, max=200, help="How many images, chosen at random.")] = 100,
    method: Annotated[Method, typer.Option(help="How the space is projected to two dimensions.")] = Method.TSNE,
    seed: Seed = 0,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Draw a map of the embedding space of a run, in which matching pictures and texts are close together.

    Lines connect captions with their picture and, for runs with regions, phrases with their best region.

    Example: deixis figures map runs/hm-lstm --corpus joined/ --out map.html
    """
    import numpy as np

    from deixis.cli.output import busy, print_json, run_corpus, run_stores
    from deixis.figures.embedding_map import check_space
    from deixis.figures.embedding_map import space_map as lay_out
    from deixis.figures.map_page import map_page, map_still
    from deixis.files import atomic_write, write_text
    from deixis.loading import load_model
    from deixis.training.kinds import kind_of
    from deixis.training.run_models import read_recipe
    from deixis.vision.reading import read_picture

    for path, ending in ((out, ".html"), (png, ".png")):
        if path is not None:
            if path.suffix.lower() != ending:
                raise DeixisError(f"{path}: choose a name that ends in {ending}")
            check_free(path, force)
    recipe, model = read_recipe(run), load_model(run, device)
    check_space(model)
    opened = run_corpus(run, recipe, corpus, pictures_in)
    stores = run_stores(run, recipe, opened, features, device, split)
    known = kind_of(recipe.kind).pictures(recipe, opened, split, stores)
    rows = np.random.default_rng(seed).permutation(len(known.images))[:count]
    images = [known.images[row] for row in np.sort(rows).tolist()]
    with busy("Laying out the space"):
        layout = lay_out(model, known, images, method=method.value)
    pictures = [read_picture(opened, image, at_least=200) for image in images]
    sizes = [
        (image.width or picture.width, image.height or picture.height)
        for image, picture in zip(images, pictures, strict=True)
    ]
    title = f"{recipe.name} on {opened.name or corpus or recipe.corpus}, {split}"
    with system_faults(out):
        write_text(out, map_page(layout, pictures, sizes, title))
    if png is not None:
        with system_faults(png), atomic_write(png) as stream:
            map_still(layout, pictures, title).save(stream, "PNG")
    if as_json:
        print_json(layout)
        return
    typer.echo(f"Drew {len(layout.points):,} points of {len(images):,} images to {out}")
