"""`deixis text`: phrases, types and tree of a sentence; training and measuring what finds them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import Force, Json

if TYPE_CHECKING:
    from deixis.corpus import Caption, Corpus
    from deixis.text.entity_types import EntityTypes

app = typer.Typer(no_args_is_help=True, help="Phrases, entity types and trees of captions.")

CorpusPath = Annotated[Path, typer.Argument(help="A corpus with phrases (Flickr30k Entities).", show_default=False)]


class Method(StrEnum):
    CHUNKER = "chunker"
    TYPES = "types"
    SPACY_MD = "spacy-md"
    SPACY_SM = "spacy-sm"
    TREES_SPACY_MD = "trees-spacy-md"
    TREES_SPACY_SM = "trees-spacy-sm"
    TREES_STANZA = "trees-stanza"


#: Every how many-th training image is kept out of training to log how it goes.
HELD_BACK = 25


@app.command()
def parse(
    sentence: Annotated[str, typer.Argument(help="A caption or query.", show_default=False)],
    parser: Annotated[str, typer.Option(help="spacy-md, spacy-sm, stanza, or auto: the first installed.")] = "auto",
    as_json: Json = False,
) -> None:
    """Show a sentence's phrases with their types, and its tree where a parser is installed.

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
        out.print(f"{' '.join(tokens[start:end]):<30} {', '.join(names)}", markup=False, soft_wrap=True)
    out.print()
    out.print(missing if parsed is None else parsed.tree.drawn(tokens), markup=False, soft_wrap=True)


@app.command()
def trees(
    corpus: Annotated[Path, typer.Argument(help="A corpus with captions.", show_default=False)],
    parser: Annotated[str, typer.Option(help="spacy-md, spacy-sm or stanza.")] = "spacy-md",
    out: Annotated[
        Path | None,
        typer.Option(help="Write a copy here (.jsonl, .ptb).", show_default=False),
    ] = None,
) -> None:
    """Parse all captions and phrases of a corpus, once, for what learns from trees; tell where the file is.

    A machine without a parser reads the file from its cache, or from where `text.trees` of a recipe says.

    Example: deixis text trees flickr30k_entities/annotations.zip
    """
    from deixis.cli.output import busy, console
    from deixis.corpus import open_corpus
    from deixis.text.treebank import cached_path, corpus_treebank

    opened = open_corpus(corpus)
    with busy("parsing"):
        bank = corpus_treebank(opened, parser)
        if out is not None:
            bank.save(out)
    path = cached_path(opened, parser) if out is None else out
    console().print(f"{len(bank):,} trees in {path}", soft_wrap=True, markup=False, highlight=False)


@app.command()
def exchange(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the twins go, a JSON object a line.")],
    split: Annotated[str, typer.Option(help="The split whose captions are exchanged.")] = "test",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make captions with two roles exchanged, checked by parsing them again: what `deixis evaluate order` scores.

    Example: deixis text exchange joined/ --split test --out twins.jsonl
    """
    from collections import Counter

    from deixis.cli.output import busy, print_json, print_table
    from deixis.cli.output_files import check_free, system_faults
    from deixis.corpus import open_corpus
    from deixis.text.twins import corpus_twins, write_twins

    check_free(out, force)
    chosen = open_corpus(corpus).split(split)
    with busy("exchanging roles"):
        found = corpus_twins(chosen)
    with system_faults(out):
        write_twins(out, found)
    relations = Counter(each.relation for each in found)
    if as_json:
        print_json({"out": str(out), "pairs": len(found), "relations": dict(relations.most_common())})
        return
    captions = sum(len(image.captions) for image in chosen)
    rows = [[name, f"{count:,}"] for name, count in relations.most_common(20)]
    print_table(f"{len(found):,} of {captions:,} captions exchanged", ["relation", "pairs"], rows)


@app.command("train-chunker")
def train_chunker(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training captions.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and dropout.")] = 0,
) -> None:
    """Train the caption chunker on the split train, without pictures that must stay unseen.

    Every 25th training picture is kept back; the log gives the F1 on those.

    Example: deixis text train-chunker flickr30k_entities/annotations.zip --out chunker.safetensors
    """
    import torch

    from deixis.cli.output import console
    from deixis.corpus import open_corpus
    from deixis.corpus.training import TrainingSet, training_set
    from deixis.metrics.phrase_chunking import score_chunking
    from deixis.training.tools.chunker_training import Schedule
    from deixis.training.tools.chunker_training import train_chunker as train

    # So small a network gains nothing from more, and sums come out the same however many cores there are.
    torch.set_num_threads(1)
    began = perf_counter()
    everything = training_set(open_corpus(corpus))
    images = everything.corpus.images
    kept = TrainingSet(everything.corpus.with_images(image for n, image in enumerate(images) if n % HELD_BACK))
    check = [caption for image in images[::HELD_BACK] for caption in image.captions]
    console().print(f"{len(kept):,} images, {everything.excluded:,} left out, {len(check):,} captions kept back")
    for epoch, loss, chunker in train(kept, Schedule(epochs=epochs, seed=seed)):
        found = chunker.phrases_of(check)
        score = score_chunking(
            (caption, spans, [("other",)] * len(spans)) for caption, spans in zip(check, found, strict=True)
        )
        line = f"epoch {epoch + 1}  loss {loss:.4f}  F1 {score.overall.f1:.4f}  {perf_counter() - began:.0f} s"
        console().print(line)
        chunker.save(out)


@app.command("train-types")
def train_types(corpus: CorpusPath, out: Annotated[Path, typer.Option(help="Where the lexicon goes (.json).")]) -> None:
    """Make the lexicon of entity types from the split train, without pictures that must stay unseen.

    Example: deixis text train-types flickr30k_entities/annotations.zip --out entity_types.json
    """
    from deixis.cli.output import console
    from deixis.corpus import open_corpus
    from deixis.corpus.training import training_set
    from deixis.training.tools.entity_types_training import learn_entity_types

    learned = learn_entity_types(training_set(open_corpus(corpus)))
    learned.save(out)
    heads = sum(map(len, learned.lexicon.heads.values()))
    exceptions = sum(map(len, learned.lexicon.phrases.values()))
    console().print(f"{heads:,} heads, {exceptions:,} phrases, {len(learned.lexicon.weights):,} features")


@app.command("train-coreference")
def train_coreference(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs of mentions.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and dropout.")] = 0,
) -> None:
    """Train the coreference scorer on the split train, without pictures that must stay unseen.

    Every 25th training picture is kept back; the log gives the F1 of its pairs.

    Example: deixis text train-coreference flickr30k_entities/annotations.zip --out coreference.safetensors
    """
    import torch

    from deixis.cli.output import console
    from deixis.corpus import open_corpus
    from deixis.corpus.training import TrainingSet, training_set
    from deixis.training.tools.coreference_training import Schedule, pairs_f1, train_scorer

    torch.set_num_threads(1)
    began = perf_counter()
    everything = training_set(open_corpus(corpus))
    images = everything.corpus.images
    kept = TrainingSet(everything.corpus.with_images(image for n, image in enumerate(images) if n % HELD_BACK))
    console().print(f"{len(kept):,} images, {everything.excluded:,} left out")
    for epoch, loss, scorer in train_scorer(kept, Schedule(epochs=epochs, seed=seed)):
        f1 = pairs_f1(scorer, images[::HELD_BACK])
        console().print(f"epoch {epoch + 1}  loss {loss:.4f}  F1 {f1:.4f}  {perf_counter() - began:.0f} s")
        scorer.save(out)


@app.command()
def evaluate(
    corpus: CorpusPath,
    method: Annotated[
        Method, typer.Option(help="The chunker, the types, a parser's noun chunks, or its trees.")
    ] = Method.CHUNKER,
    split: Annotated[str, typer.Option(help="The split to measure on.")] = "val",
    without: Annotated[
        Path | None,
        typer.Option(help="A list of pictures to leave out (Flickr_8k.trainImages.txt).", show_default=False),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Another chunker or lexicon than the package's own.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a result file here.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Measure phrases, types or trees against a corpus' phrases: exact spans, non-visual phrases included.

    Example: deixis text evaluate flickr30k_entities/annotations.zip --without flickr8k/Flickr_8k.trainImages.txt
    """
    from deixis.cli.output import busy, print_json, print_table
    from deixis.corpus import open_corpus
    from deixis.metrics.results import Protocol, corpus_reference, flatten, make_result, save

    with busy("reading the corpus"):
        chosen = open_corpus(corpus).split(split)
        if without is not None:
            chosen = leave_out(chosen, without)
    captions = [caption for image in chosen for caption in image.captions]
    began = perf_counter()
    with busy(f"measuring {len(captions):,} captions"):
        metrics, counts = _measure(method, captions, model)
    result = make_result(
        Protocol("phrases of captions", "a span counts when both its ends are right", _parameters(method)),
        metrics,
        duration=perf_counter() - began,
        corpus=corpus_reference(chosen, split),
        counts={"images": len(chosen), "captions": len(captions), **counts},
    )
    if out is not None:
        save(result, out)
    if as_json:
        print_json(result)
    else:
        figures = [*((name, f"{value:,}") for name, value in result.counts.items())]
        figures += [(name, f"{value:.4f}") for name, value in flatten(result.metrics)]
        print_table(f"{method} on {chosen.name} {split}", ["figure", "value"], figures)


def _parameters(method: Method) -> dict[str, str | int | float | bool]:
    """The method, and what model of spaCy stood behind it."""
    from importlib.metadata import version

    from deixis.text.parsing import SPACY_PACKAGES, spacy_folder

    folder = next((spacy_folder(name) for name in SPACY_PACKAGES if method.endswith(name)), None)
    model = {} if folder is None else {"model": folder.name, "spacy": version("spacy")}
    return {"method": method.value, **model}


def leave_out(corpus: Corpus, names: Path) -> Corpus:
    """The corpus without the pictures of a list; a name counts up to its first `_` or `.` (Flickr's photo id)."""
    from deixis.errors import InputError

    try:
        listed = {line.strip().split("_")[0].split(".")[0] for line in names.read_text(encoding="utf-8").splitlines()}
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(names, getattr(fault, "strerror", None) or "is not a list of names") from None
    return corpus.where(lambda image: image.id.split("_")[0].split(".")[0] not in listed)


def _measure(method: Method, captions: list[Caption], model: Path | None) -> tuple[dict[str, Any], dict[str, int]]:
    """Metrics and counts of one method."""
    from deixis.metrics.phrase_chunking import score_chunking, score_nodes
    from deixis.text.chunker import Chunker
    from deixis.text.constituency import constituency
    from deixis.text.entity_types import EntityTypes
    from deixis.text.parsing import load_parser

    if method == "types":
        return _measure_types(captions, EntityTypes.load(model))
    if method == "chunker":
        chunker = Chunker.load(model)
        began = process_time()
        found = chunker.phrases_of(captions)
    else:
        parser = load_parser(method.removeprefix("trees-"))
        began = process_time()
        parsed = list(parser.parse(captions))
        found = [list(sentence.noun_chunks) for sentence in parsed]
    speed = {"captions_per_processor_second": len(captions) / (process_time() - began)}
    if method.startswith("trees-"):
        whole = score_nodes((caption, sentence.tree) for caption, sentence in zip(captions, parsed, strict=True))
        alone = score_nodes((caption, constituency(s.words)) for caption, s in zip(captions, parsed, strict=True))
        deepest = max(sentence.tree.depth for sentence in parsed)
        return {"trees": whole, "parser_alone": alone, **speed}, {"deepest": deepest}
    types = EntityTypes.load()
    names = [types.types_in(caption.tokens, spans) for caption, spans in zip(captions, found, strict=True)]
    score = score_chunking(zip(captions, found, names, strict=True))
    return {**score.figures(), **speed}, {"phrases": score.overall.gold, "found": score.overall.found}


def _measure_types(captions: list[Caption], types: EntityTypes) -> tuple[dict[str, Any], dict[str, int]]:
    from deixis.metrics.phrase_chunking import score_types

    rows = []
    for caption in captions:
        given = types.types_in(caption.tokens, [(phrase.start, phrase.end) for phrase in caption.phrases])
        for phrase, names in zip(caption.phrases, given, strict=True):
            rows.append((phrase.types, names, types.knows(caption.tokens[phrase.end - 1].lower())))
    unseen = [(own, names) for own, names, known in rows if not known]
    metrics: dict[str, Any] = {"types": score_types((own, names) for own, names, _ in rows)}
    if unseen:
        metrics["unseen_heads"] = score_types(unseen)
    return metrics, {"phrases": len(rows), "phrases_with_unseen_head": len(unseen)}
