"""`deixis extract`: compute the features of a corpus into a feature store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deixis.cli.options import CorpusPath, Device, Json, Limit, PicturesIn, Splits


def extract(
    corpus: CorpusPath,
    features: Annotated[
        str,
        typer.Option(
            help="A feature recipe: image, ten-crop, regions, drawn, chains, or a .toml file. Or a file of features "
            "computed elsewhere: .npy, .npz, .safetensors."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="STORE", help="The folder of the store; an unfinished one is continued.")
    ],
    split: Splits = None,
    limit: Limit = None,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Decoding threads.", show_default="one per CPU core")
    ] = None,
    engine: Annotated[str, typer.Option(help="local: this machine. ray: a Ray cluster (extra `ray`).")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="The address of the Ray cluster: host:port, or auto.", show_default="Ray on this machine"),
    ] = None,
    json: Json = False,
) -> None:
    """Compute the features of a corpus and store them: whole pictures, and regions if the recipe has them.

    An interrupted extraction continues where it stopped when the same command is run again, and ends with the same
    bytes. Pictures that cannot be read are skipped, and listed in the store's manifest.json.

    Features that were computed elsewhere can be stored too: their rows must follow the images of the corpus (of the
    chosen splits).

    On a CPU the networks of Deixis run on onnxruntime; the first run exports them into the cache folder. Features from
    a GPU are the same to rounding.

    On a Ray cluster every machine needs Deixis and the same paths to pictures and store. The result has the same bytes
    as on one machine. If a worker dies, its partitions are computed again.

    Example: deixis extract photos/ --features image --out photos.features

    Example: deixis extract photos/ --features regions --out /shared/photos.features --engine ray --address auto
    """
    from deixis.cli.output import print_json, print_table, progress_bar, resumable
    from deixis.corpus import open_corpus
    from deixis.errors import DeixisError, InputError
    from deixis.features.extraction import extract as run
    from deixis.features.feature_recipe import load_recipe

    if engine not in ("local", "ray"):
        raise DeixisError(f"unknown engine {engine!r}; known: local, ray")
    if address is not None and engine != "ray":
        raise DeixisError("--address needs --engine ray")
    recipe = load_recipe(features)
    opened = open_corpus(corpus, pictures=pictures_in)
    chosen = opened.split(*split) if split else opened
    mapper: Any
    if recipe.from_file:
        if engine == "ray":
            raise InputError(features, "holds features already: there is nothing to compute on a cluster")
        from deixis.features.precomputed import precomputed

        # Rows follow all images of the splits, even with --limit.
        mapper, chosen = precomputed(recipe, chosen)
        chosen = chosen.with_images(chosen.images[:limit])
    else:
        chosen = chosen.with_images(chosen.images[:limit])
        if recipe.regions and recipe.regions.boxes in ("drawn", "chains") and not any(image.boxes for image in chosen):
            raise InputError(corpus, "has no annotated boxes for the regions of the recipe")
        from deixis.features.mapper import MapperMaker

        makes = MapperMaker(recipe, device)
        mapper = None if engine == "ray" else makes.mapper()
    origin = {"corpus": opened.fingerprint}
    with resumable(), progress_bar("Extracting") as progress:
        if mapper is None:
            from deixis.features.ray_engine import extract_on_ray

            report = extract_on_ray(
                chosen,
                makes,
                out,
                address=address,
                gpu=device == "cuda",
                provenance=origin,
                readers=workers,
                progress=progress,
                say=lambda text: typer.echo(text, err=True),
            )
        else:
            report = run(chosen, mapper, out, provenance=origin, workers=workers, progress=progress)
    manifest, seconds = report.manifest, report.seconds["all"]
    outcome = {
        "store": str(out),
        "fingerprint": manifest.fingerprint,
        "images": sum(manifest.items),
        "skipped": {image.id: image.reason for image in manifest.skipped},
        "rows": manifest.rows,
        "extracted_now": report.done,
        "seconds": {stage: round(value, 3) for stage, value in report.seconds.items()},
    }
    if json:
        print_json(outcome)
        return
    rate = f"{report.done / seconds:.1f} per second" if report.done else "all were stored already"
    rows = [("images", f"{sum(manifest.items):,}"), ("extracted now", f"{report.done:,} ({rate})")]
    rows += [(name, f"{count:,} × {report.plan.arrays[name].shape}") for name, count in manifest.rows.items()]
    rows += [("skipped", f"{len(manifest.skipped):,}"), ("fingerprint", manifest.fingerprint[:16])]
    print_table(str(out), ["", "features"], rows)
    for image in manifest.skipped[:10]:
        typer.echo(f"skipped {image.id}: {image.reason}", err=True)
    if len(manifest.skipped) > 10:
        typer.echo(f"… and {len(manifest.skipped) - 10:,} more, listed in {out / 'manifest.json'}", err=True)
