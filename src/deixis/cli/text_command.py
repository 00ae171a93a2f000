"""`deixis text`: phrases, entity types and trees of captions; training and measuring the models that find them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from deixis.cli.options import SCORED_SPLIT, CorpusPath, Force, Json, ResultFile, Seed, Split
from deixis.cli.output_files import check_free, system_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deixis.corpus import Caption, Corpus, Image
    from deixis.corpus.leak_guard import TrainingSet
    from deixis.text.entity_types import EntityTypes
    from deixis.training.tools.tool_runs import ToolRecipe, ToolTask

R = TypeVar("R", bound="ToolRecipe")

app = typer.Typer(no_args_is_help=True, help="Find phrases, entity types and trees in captions.")


class Method(StrEnum):
    CHUNKER = "chunker"
    TYPES = "types"
    SPACY_MD = "spacy-md"
    SPACY_SM = "spacy-sm"
    TREES_SPACY_MD = "trees-spacy-md"
    TREES_SPACY_SM = "trees-spacy-sm"
    TREES_STANZA = "trees-stanza"


Weights = Annotated[Path, typer.Option("--out", metavar="FILE", help="The weights to write (.safetensors).")]


@app.command()
def parse(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="A caption or query.", show_default=False)],
    parser: Annotated[
        str, typer.Option(help="spacy-md, spacy-sm, stanza, or auto (the first that is installed).")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Show the phrases of a sentence with their types and, if a parser is installed, its tree.

    Example: deixis text parse "a man in a red shirt rides a horse"
    """
    from deixis.cli.output import console, print_json
    from deixis.text.chunker import Chunker
    from deixis.text.entity_types import EntityTypes
    from deixis.text.parsing import ParserMissing, load_parser
    from deixis.text.tokens import tokenize

    tokens = tokenize(sentence)
    spans = Chunker.load().phrases(tokens)
    types = EntityTypes.load().types_in(tokens, spans)
    try:
        parsed = next(iter(load_parser(parser).parse([tokens])))
        missing = ""
    except ParserMissing as fault:
        if parser != "auto":
            raise
        parsed, missing = None, str(fault)
    if as_json:
        phrases = [
            {"text": " ".join(tokens[start:end]), "start": start, "end": end, "types": names}
            for (start, end), names in zip(spans, types, strict=True)
        ]
        tree = None if parsed is None else parsed.tree.to_data()
        print_json({"tokens": tokens, "phrases": phrases, "tree": tree} | ({"note": missing} if missing else {}))
        return
    out = console()
    for (start, end), names in zip(spans, types, strict=True):
        out.print(f"{' '.join(tokens[start:end]):<30} {', '.join(names)}", soft_wrap=True)
    out.print()
    out.print(missing if parsed is None else parsed.tree.drawn(tokens), soft_wrap=True)


@app.command()
def trees(
    corpus: CorpusPath,
    parser: Annotated[str, typer.Option(help="spacy-md, spacy-sm or stanza.")] = "spacy-md",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the trees to this file (.jsonl, .ptb).", show_default=False),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Parse all captions and phrases of a corpus into the cache, for models that learn from trees.

    To train on a machine without a parser, copy the file there and name it in the recipe as `text.trees`.

    Example: deixis text trees flickr30k_entities/annotations.zip
    """
    from deixis.cli.output import busy, console, print_json
    from deixis.corpus import open_corpus
    from deixis.text.treebank import cached_path, corpus_treebank

    check_free(out, force)
    opened = open_corpus(corpus)
    with busy("Parsing"):
        bank = corpus_treebank(opened, parser)
        if out is not None:
            with system_faults(out):
                bank.save(out)
    path = cached_path(opened, parser) if out is None else out
    if as_json:
        print_json({"out": str(path), "trees": len(bank)})
        return
    console().print(f"{len(bank):,} trees in {path}", soft_wrap=True)


@app.command()
def exchange(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, one JSON object per line.")],
    split: Split = SCORED_SPLIT,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make captions with two roles exchanged, for `deixis evaluate order`. Each is checked by parsing it again.

    Example: deixis text exchange joined/ --split test --out twins.jsonl
    """
    from collections import Counter

    from deixis.cli.output import busy, print_json, print_table
    from deixis.corpus import open_corpus
    from deixis.text.twins import corpus_twins, write_twins

    check_free(out, force)
    chosen = open_corpus(corpus).split(split)
    with busy("Exchanging roles"):
        twins = corpus_twins(chosen)
    with system_faults(out):
        write_twins(out, twins)
    relations = Counter(twin.relation for twin in twins)
    if as_json:
        print_json({"out": str(out), "pairs": len(twins), "relations": dict(relations.most_common())})
        return
    captions = sum(len(image.captions) for image in chosen)
    rows = [[name, f"{count:,}"] for name, count in relations.most_common(20)]
    print_table(f"{len(twins):,} of {captions:,} captions exchanged", ["relation", "pairs"], rows)


@app.command("train-chunker")
def train_chunker(
    corpus: CorpusPath,
    out: Weights,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training captions.")] = 5,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Train the caption chunker on the split train of a corpus with phrases, without held-out pictures.

    Every 25th training picture is left out to log the F1 after each epoch. Run the same command again to continue an
    interrupted training: its checkpoints and log are in a run folder beside the weights.

    Example: deixis text train-chunker flickr30k_entities/annotations.zip --out chunker.safetensors
    """
    from deixis.training.tools.chunker_training import ChunkerTask, chunker_recipe

    _train(ChunkerTask, chunker_recipe(epochs, seed), corpus, out, force, as_json)


@app.command("train-types")
def train_types(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The lexicon to write (.json).")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Learn the lexicon of entity types from the split train of a corpus with phrases, without held-out pictures.

    Example: deixis text train-types flickr30k_entities/annotations.zip --out entity_types.json
    """
    check_free(out, force)
    from deixis.cli.output import busy, print_json
    from deixis.corpus import open_corpus
    from deixis.corpus.leak_guard import training_set
    from deixis.training.tools.entity_types_training import learn_entity_types

    with busy("Learning entity types"):
        learned = learn_entity_types(training_set(open_corpus(corpus)))
    with system_faults(out):
        learned.save(out)
    counts = {
        "heads": sum(map(len, learned.lexicon.heads.values())),
        "phrases": sum(map(len, learned.lexicon.phrases.values())),
        "features": len(learned.lexicon.weights),
    }
    if as_json:
        print_json({"out": str(out), **counts})
    else:
        typer.echo(f"Wrote {out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


@app.command("train-coreference")
def train_coreference(
    corpus: CorpusPath,
    out: Weights,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs of mentions.")] = 4,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Train the coreference scorer on the split train of a corpus with chains, without held-out pictures.

    Every 25th training picture is left out to log the F1 of pairs after each epoch. Run the same command again to
    continue an interrupted training: its checkpoints and log are in a run folder beside the weights.

    Example: deixis text train-coreference flickr30k_entities/annotations.zip --out coreference.safetensors
    """
    from deixis.training.tools.coreference_training import CoreferenceTask, coreference_recipe

    _train(CoreferenceTask, coreference_recipe(epochs, seed), corpus, out, force, as_json)


def _train(
    make_task: Callable[[TrainingSet, Sequence[Image], R], ToolTask],
    recipe: R,
    corpus: str,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Train a tool in the run folder beside `out`, and write its weights."""
    check_free(out, force)
    import torch

    from deixis.cli.output import print_json, resumable
    from deixis.cli.train import training_progress
    from deixis.corpus import open_corpus
    from deixis.corpus.leak_guard import training_set
    from deixis.training.run_records import epochs_of
    from deixis.training.runs import read_log
    from deixis.training.threads import one_thread
    from deixis.training.tools.tool_runs import hold_out, train_tool

    opened, run = open_corpus(corpus), out.with_suffix(".run")
    training, held_out = hold_out(training_set(opened))
    task = make_task(training, held_out, recipe)
    # A network this small gains nothing from more threads, and one thread makes sums independent of the machine.
    with one_thread(), resumable(), training_progress(recipe) as (progress, say):
        train_tool(task, recipe, opened, run, torch.device("cpu"), progress=progress, say=say)
    with system_faults(out):
        task.export().save(out)
    log = [
        {"epoch": record.epoch, "loss": record.loss, **(record.figures or {}), "seconds": record.seconds}
        for record in epochs_of(read_log(run))
    ]
    if as_json:
        print_json({"out": str(out), "images": len(training), "excluded": training.excluded, "epochs": log})
    else:
        typer.echo(f"Wrote {out}: trained on {len(training):,} images ({training.excluded:,} excluded)")


@app.command()
def evaluate(
    corpus: CorpusPath,
    method: Annotated[
        Method, typer.Option(help="The chunker, the entity types, a parser's noun chunks, or its trees.")
    ] = Method.CHUNKER,
    split: Split = SCORED_SPLIT,
    without: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A list of pictures to leave out (Flickr_8k.trainImages.txt).", show_default=False
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Weights of a chunker, or a lexicon.", show_default="the bundled ones"),
    ] = None,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure phrases, types or trees against the phrases of a corpus: exact spans, non-visual phrases included.

    Example: deixis text evaluate flickr30k_entities/annotations.zip --without flickr8k/Flickr_8k.trainImages.txt
    """
    from deixis.cli.output import busy, print_json, print_table
    from deixis.corpus import open_corpus
    from deixis.metrics.results import Protocol, corpus_reference, flatten, make_result, save

    check_free(out, force)
    with busy("Reading the corpus"):
        chosen = open_corpus(corpus).split(split)
        if without is not None:
            chosen = leave_out(chosen, without)
    captions = [caption for image in chosen for caption in image.captions]
    start = perf_counter()
    with busy(f"Measuring {len(captions):,} captions"):
        metrics, counts = _measure(method, captions, model)
    result = make_result(
        Protocol("phrases of captions", "a span counts when both its ends are right", _parameters(method)),
        metrics,
        duration=perf_counter() - start,
        corpus=corpus_reference(chosen, split),
        counts={"images": len(chosen), "captions": len(captions), **counts},
    )
    if out is not None:
        with system_faults(out):
            save(result, out)
    if as_json:
        print_json(result)
    else:
        figures = [*((name, f"{value:,}") for name, value in result.counts.items())]
        figures += [(name, f"{value:.4f}") for name, value in flatten(result.metrics)]
        print_table(f"{method} on {chosen.name} {split}", ["metric", "value"], figures)


def _parameters(method: Method) -> dict[str, str | int | float | bool]:
    """The method, and the spaCy model it uses."""
    from importlib.metadata import version

    from deixis.text.parsing import SPACY_PACKAGES, spacy_folder

    folder = next((spacy_folder(name) for name in SPACY_PACKAGES if method.endswith(name)), None)
    model = {} if folder is None else {"model": folder.name, "spacy": version("spacy")}
    return {"method": method.value, **model}


def leave_out(corpus: Corpus, names: Path) -> Corpus:
    """The corpus without the listed pictures; names are compared up to the first `_` or `.` (Flickr's photo id)."""
    from deixis.files import read_utf8

    listed = {line.strip().split("_")[0].split(".")[0] for line in read_utf8(names).splitlines()}
    return corpus.where(lambda image: image.id.split("_")[0].split(".")[0] not in listed)


def _measure(method: Method, captions: list[Caption], model: Path | None) -> tuple[dict[str, Any], dict[str, int]]:
    """The metrics and counts of a method."""
    from deixis.metrics.phrase_chunking import score_chunking, score_nodes
    from deixis.text.chunker import Chunker
    from deixis.text.constituency import constituency
    from deixis.text.entity_types import EntityTypes
    from deixis.text.parsing import load_parser

    if method == "types":
        return _measure_types(captions, EntityTypes.load(model))
    if method == "chunker":
        chunker = Chunker.load(model)
        start = process_time()
        phrases = chunker.phrases_of(captions)
    else:
        parser = load_parser(method.removeprefix("trees-"))
        start = process_time()
        parsed = list(parser.parse(captions))
        phrases = [list(sentence.noun_chunks) for sentence in parsed]
    speed = {"captions_per_processor_second": len(captions) / (process_time() - start)}
    if method.startswith("trees-"):
        whole = score_nodes((caption, sentence.tree) for caption, sentence in zip(captions, parsed, strict=True))
        alone = score_nodes((caption, constituency(s.words)) for caption, s in zip(captions, parsed, strict=True))
        deepest = max(sentence.tree.depth for sentence in parsed)
        return {"trees": whole, "parser_alone": alone, **speed}, {"deepest": deepest}
    types = EntityTypes.load()
    names = [types.types_in(caption.tokens, spans) for caption, spans in zip(captions, phrases, strict=True)]
    score = score_chunking(zip(captions, phrases, names, strict=True))
    return {**score.figures(), **speed}, {"phrases": score.overall.gold, "found": score.overall.found}


def _measure_types(captions: list[Caption], types: EntityTypes) -> tuple[dict[str, Any], dict[str, int]]:
    from deixis.metrics.phrase_chunking import score_types

    rows = []
    for caption in captions:
        predicted = types.types_in(caption.tokens, [(phrase.start, phrase.end) for phrase in caption.phrases])
        for phrase, names in zip(caption.phrases, predicted, strict=True):
            rows.append((phrase.types, names, types.knows(caption.tokens[phrase.end - 1].lower())))
    unseen = [(gold, names) for gold, names, known in rows if not known]
    metrics: dict[str, Any] = {"types": score_types((gold, names) for gold, names, _ in rows)}
    if unseen:
        metrics["unseen_heads"] = score_types(unseen)
    return metrics, {"phrases": len(rows), "phrases_with_unseen_head": len(unseen)}
