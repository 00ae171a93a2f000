"""`deixis figures gallery` and `deixis figures correspondences`: pages of what runs retrieve and localize."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from deixis.corpus import Corpus, Image
    from deixis.figures.retrieved_sentences import Retrieved
    from deixis.metrics.results import Result
    from deixis.model import Concept

#: Columns of a sheet, and the longer side of a picture on a page in pixels.
COLUMNS, LONGER_SIDE = 3, 480
#: Sentences per run.
SENTENCES = 3


def gallery(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs, the simplest first.")],
    corpus: CorpusOfRun = None,
    pictures_in: PicturesIn = None,
    features: Features = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="An image; may be repeated.", show_default="random")
    ] = None,
    split: Split = SCORED_SPLIT,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many random images, if none is named.")] = 6,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of the page.", show_default="gallery in the last run"),
    ] = None,
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a page of the sentences that several runs retrieve for the same pictures, and the concepts they see.

    Without --image, pictures are chosen at random, whatever the runs find. A picture's own captions are bold.

    Example: deixis figures gallery runs/ctx runs/cnp-ctx runs/cnp-ctx-gen --corpus joined/
    """
    from deixis.cli.output import busy, print_json, run_corpus, track
    from deixis.features.store import FeatureStore
    from deixis.figures.page import page
    from deixis.figures.retrieved_sentences import retrieved_sentences
    from deixis.files import write_text
    from deixis.loading import load_model
    from deixis.training.kinds import kind_of
    from deixis.training.run_models import read_recipe
    from deixis.training.running import stores_for

    folder = out or runs[-1] / "gallery"
    check_free(folder, force)
    opened = run_corpus(runs[-1], read_recipe(runs[-1]), corpus, pictures_in)
    with busy("Reading features"):
        opened_stores = [FeatureStore(path) for path in features or []]
    chosen = [opened[name] for name in image or []] or _random_images(opened.split(split).images, count, seed)
    names = [read_recipe(run).name for run in runs]
    columns: list[list[tuple[list[Retrieved], int]]] = []
    concepts: list[list[Concept]] = []
    for run in track(runs, "Retrieving", len(runs)):
        recipe, model = read_recipe(run), load_model(run, device)
        stores = opened_stores or stores_for(recipe, opened, run=run, split=None if image else split, device=device)
        pictures = kind_of(recipe.kind).pictures(recipe, opened, split, stores)
        columns.append(retrieved_sentences(model, pictures, chosen, SENTENCES))
        if "concepts" in model.abilities:
            concepts = [model.concepts(pictures.features(chosen_image))[:10] for chosen_image in chosen]
    entries = [
        {
            "image": chosen_image.id,
            "captions": [caption.text for caption in chosen_image.captions],
            "found": {
                name: {"sentences": [item._asdict() for item in column[row][0]], "rank": column[row][1]}
                for name, column in zip(names, columns, strict=True)
            },
            "concepts": concepts[row] if concepts else [],
        }
        for row, chosen_image in enumerate(chosen)
    ]
    lead = (
        f"{len(chosen)} pictures of {opened.name or corpus or 'the corpus'}, {split}: the best {SENTENCES} captions of "
        "the split for each run. A picture's own captions are bold; the rank is that of the best of them."
    )
    with system_faults(folder):
        sections = [
            (chosen_image.id, _section(entry, _saved(opened, chosen_image, folder)))
            for chosen_image, entry in zip(chosen, entries, strict=True)
        ]
        write_text(folder / "index.html", page("Sentences for pictures", lead, sections))
    if as_json:
        print_json({"out": str(folder / "index.html"), "pictures": entries})
        return
    typer.echo(f"Wrote {len(chosen)} pictures to {folder / 'index.html'}")


def correspondences(
    run: RunFolder,
    corpus: CorpusOfRun = None,
    pictures_in: PicturesIn = None,
    count: Annotated[int, typer.Option(min=1, max=60, help="How many random captions.")] = 6,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of the page.", show_default="correspondences in the run"),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show and measure the regions that each training round of an HM-LSTM chose for the phrases of its captions.

    Writes a page with sheets of pictures, one row per round, and `result.json` with the share of phrases whose region
    is correct, by round and type. The ground-truth boxes, which training did not see, decide what is correct.

    Example: deixis figures correspondences runs/hm-lstm --corpus joined/
    """
    import numpy as np

    from deixis.cli.output import busy, print_json, run_corpus
    from deixis.figures.page import drawing_of, page
    from deixis.files import atomic_write, write_text
    from deixis.metrics.results import save
    from deixis.papers.hm_lstm.correspondence_quality import correspondence_quality, shown_captions
    from deixis.training.recipe_reference import reference
    from deixis.training.run_models import read_recipe
    from deixis.training.runs import read_model
    from deixis.vision.drawing.pages import Example, draw_comparison
    from deixis.vision.reading import read_picture

    folder = out or run / "correspondences"
    check_free(folder, force)
    recipe = read_recipe(run)
    read_model(run)
    opened = run_corpus(run, recipe, corpus, pictures_in)
    with busy("Measuring"):
        result = correspondence_quality(
            run, opened, recipe=reference(recipe), seed=recipe.seed, readings=recipe.readings
        )
        shown = shown_captions(run, opened, count, np.random.default_rng(seed))
    examples = [
        Example(caption.image, read_picture(opened, caption.image), caption.caption, caption.rounds)
        for caption in shown
    ]
    sections = [("How many are correct", _figures(result))]
    with system_faults(folder), busy("Drawing"):
        for sheet, start in enumerate(range(0, len(examples), COLUMNS), start=1):
            columns = examples[start : start + COLUMNS]
            rounds = [f"round {position}" for position in range(1, 1 + len(columns[0].found))]
            with atomic_write(folder / f"sheet-{sheet}.png") as stream:
                draw_comparison(rounds, columns).save(stream, "PNG")
            drawing = drawing_of(f"sheet-{sheet}.png", "One row per round, one column per caption")
            sections.append((f"Sheet {sheet}", drawing))
        save(result, folder / "result.json")
        write_text(folder / "index.html", page(f"Correspondences of {recipe.name}", QUALITY, sections))
    if as_json:
        print_json({"out": str(folder / "index.html"), "result": result})
        return
    for name, figures in result.metrics.items():
        overall: Any = figures["overall"]  # type: ignore[index]
        typer.echo(f"{name}: {overall['right']:.1f}% correct; upper bound of the regions {overall['upper_bound']:.1f}%")
    typer.echo(f"Wrote {len(examples)} captions to {folder / 'index.html'}")


QUALITY = (
    "The region that each round chose for a noun phrase of the training captions. It is correct if its intersection "
    "over union with the phrase's ground-truth box is at least 0.5; training did not use these boxes. The upper bound "
    "is the share of phrases for which some region would be correct."
)


def _random_images(images: tuple[Image, ...], count: int, seed: int) -> list[Image]:
    import numpy as np

    rows = np.sort(np.random.default_rng(seed).permutation(len(images))[:count])
    return [images[row] for row in rows.tolist()]


def _saved(corpus: Corpus, image: Image, folder: Path) -> str:
    """Save the picture for the page; returns its relative path."""
    from deixis.files import atomic_write
    from deixis.vision.reading import read_picture

    picture = read_picture(corpus, image, at_least=LONGER_SIDE)
    picture.thumbnail((LONGER_SIDE, LONGER_SIDE))
    name = f"pictures/{''.join(sign if sign.isalnum() or sign in '-_' else '_' for sign in image.id)}.jpg"
    with atomic_write(folder / name) as stream:
        picture.save(stream, "JPEG", quality=88)
    return name


def _section(entry: dict[str, Any], picture: str) -> str:
    """HTML of a picture, its concepts, and a column of sentences for each run."""
    cell = 'style="text-align:left;white-space:normal;vertical-align:top;min-width:15rem"'
    heads = "".join(f"<th {cell}>{escape(name)} (rank {run['rank']})</th>" for name, run in entry["found"].items())
    columns = "".join(
        f"<td {cell}><ol>"
        + "".join(
            f"<li>{'<strong>' if item['own'] else ''}{escape(item['text'])}{'</strong>' if item['own'] else ''}</li>"
            for item in run["sentences"]
        )
        + "</ol></td>"
        for run in entry["found"].values()
    )
    bars = "".join(
        f"<tr><td>{escape(concept.concept)}</td><td><meter value={concept.confidence:.3f}></meter></td>"
        f"<td>{concept.confidence:.2f}</td></tr>"
        for concept in entry["concepts"]
    )
    concepts = f'<table aria-label="concepts">{bars}</table>' if bars else ""
    return (
        f'<div class="scenes"><figure><img src="{escape(picture)}" alt="{escape(entry["captions"][0])}" '
        f'loading="lazy"></figure>{concepts}</div>\n'
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody><tr>{columns}</tr></tbody></table></div>'
    )


def _figures(result: Result) -> str:
    """A table with one row per round and type."""
    from deixis.figures.page import table

    rows = []
    for name, figures in result.metrics.items():
        measured: Any = figures
        for kind, scores in {"all": measured["overall"], **measured["by_type"]}.items():
            shares = [scores["right"], scores["upper_bound"], scores.get("share_of_upper_bound")]
            cells = ["" if share is None else f"{share:.1f}" for share in shares]
            rows.append([f"{name.replace('_', ' ')}: {kind}", f"{scores['instances']:,.0f}", *cells])
    return table(("round: type", "phrases", "correct, %", "upper bound, %", "share of it, %"), rows)
