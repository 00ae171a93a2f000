"""What reads files, each with seeds that it reads well: folders, made on the fly.

A reader is given the folder of a damaged seed. It runs the commands, or the functions, that a person or a program would
use on such files.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pillow

from deixis.errors import DeixisError

TEXT = "a dog and two people in the snow"


class Reader(NamedTuple):
    name: str
    #: Writes one folder for each seed.
    make_seeds: Callable[[Path], None]
    read: Callable[[Path], None]
    #: Gives files that were changed the hashes that they should have.
    sign: Callable[[Path], None] | None = None
    #: Whether tables of databases are damaged, too, and whether a file may become something else than a file.
    databases: bool = False
    special: bool = True


def command(*arguments: object) -> None:
    """Run `deixis …`; its one line is raised as a `DeixisError`, and whatever else is wrong as an `AssertionError`."""
    from deixis.cli import main

    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    before, sys.argv = sys.argv, ["deixis", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        said = err.getvalue()
        lines = [line for line in said.splitlines() if line.startswith("deixis: ")]
        if end.code == 2 and len(lines) == 1 and "Traceback" not in said:
            raise DeixisError(lines[0]) from None
        if end.code not in (None, 0, 1):
            raise AssertionError(f"exit code {end.code}: {said[-300:]}") from None
    finally:
        sys.argv = before


def _several(*reads: Callable[[], object]) -> None:
    """All of these; what is refused by one may be read by another."""
    refusal = None
    for read in reads:
        try:
            read()
        except DeixisError as fault:
            refusal = fault
    if refusal is not None:
        raise refusal


def _one_of(folder: Path, *reads: Callable[[], object]) -> None:
    """One of several commands that take long; which one depends on the files, so that an example can be repeated."""
    found = "".join(f"{path.relative_to(folder)} {path.lstat().st_size}" for path in sorted(folder.rglob("*")))
    reads[zlib.crc32(found.encode(errors="replace")) % len(reads)]()


# Corpora


def _corpora(folder: Path) -> None:
    from deixis.corpus import write_corpus
    from deixis.corpus.formats import FORMATS
    from tests.corpus.test_damage import sample

    for format in FORMATS:
        write_corpus(sample(), folder / format / format, format=format)
        Pillow.new("RGB", (60, 40)).save(folder / format / format / "101.jpg")


def _read_corpus(folder: Path) -> None:
    from deixis.corpus import open_corpus
    from deixis.corpus.statistics import corpus_statistics

    for path in folder.iterdir():
        corpus = open_corpus(path, cache=False)
        corpus_statistics(corpus)
        if corpus.pictures is not None:
            for image in corpus:
                with contextlib.suppress(DeixisError):
                    corpus.pictures.read(image)


def _archives(folder: Path) -> None:
    _corpora(folder)
    for seed in list(folder.iterdir()):
        with zipfile.ZipFile(seed / "corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(seed.glob("*/**/*")):
                if file.is_file():
                    archive.write(file, file.relative_to(seed / seed.name))
        for file in sorted((seed / seed.name).rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        (seed / seed.name).rmdir()


# Pictures


def _pictures(folder: Path) -> None:
    import pillow_heif

    from tests.vision.raw_files import dng

    pillow_heif.register_heif_opener()
    noise = Pillow.effect_noise((90, 70), 60).convert("RGB")
    exif = Pillow.Exif()
    exif[0x0112] = 6
    kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
        "plain.jpg": ("RGB", "JPEG", {"exif": exif.tobytes()}),
        "progressive.jpg": ("RGB", "JPEG", {"progressive": True}),
        "cmyk.jpg": ("CMYK", "JPEG", {}),
        "rgba.png": ("RGBA", "PNG", {}),
        "palette.png": ("P", "PNG", {"transparency": 3}),
        "deep.png": ("I;16", "PNG", {}),
        "lossy.webp": ("RGB", "WEBP", {"exif": exif.tobytes()}),
        "lossless.webp": ("RGBA", "WEBP", {"lossless": True}),
        "moving.webp": ("RGB", "WEBP", {"save_all": True, "append_images": [noise.rotate(90, expand=False)]}),
        "plain.bmp": ("RGB", "BMP", {}),
        "moving.gif": ("P", "GIF", {"save_all": True, "append_images": [noise.convert("P")]}),
        "float.tiff": ("F", "TIFF", {"compression": "tiff_adobe_deflate"}),
        "lzw.tif": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
        "jpeg.tif": ("RGB", "TIFF", {"compression": "jpeg"}),
        "plain.tif": ("CMYK", "TIFF", {}),
        "plain.avif": ("RGB", "AVIF", {"exif": exif.tobytes()}),
        "plain.heic": ("RGB", "HEIF", {"exif": exif.tobytes()}),
    }
    for name, (mode, format, options) in kinds.items():
        (folder / name).mkdir(parents=True)
        noise.convert("L").convert(mode).save(folder / name / name, format, **options) if mode == "I;16" else (
            noise.convert(mode).save(folder / name / name, format, **options)
        )
    previews = {"preview.dng": noise.resize((1200, 800)), "developed.dng": None}
    for name, preview in previews.items():
        (folder / name).mkdir()
        (folder / name / name).write_bytes(dng((64, 48), (200, 40, 40), preview=preview))


def _read_pictures(folder: Path) -> None:
    from deixis.vision.picture_files import read_named_file, read_picture_file
    from deixis.vision.reading import read_size

    for path in folder.iterdir():
        _several(
            partial(read_picture_file, path),
            partial(read_picture_file, path, at_least=20),
            lambda path=path: read_size(read_named_file(path)[0], name=path.name),
        )


# Models


def _bundles(folder: Path) -> None:
    from tests.search.conftest import few_scenes, make_untrained_bundle

    make_untrained_bundle(few_scenes(), folder / "bundle")


def _sign_bundle(folder: Path) -> None:
    import json

    import msgspec

    from deixis.adapters.bundles import MANIFEST, file_record

    # An edit may have made a pipe or a link to a device of it, which would never be read to the end.
    if not (folder / MANIFEST).is_file():
        return
    with contextlib.suppress(Exception):
        manifest = json.loads((folder / MANIFEST).read_text())
        for name in manifest["files"]:
            manifest["files"][name] = msgspec.to_builtins(file_record(folder / name))
        (folder / MANIFEST).write_text(json.dumps(manifest))


def _read_model(folder: Path) -> None:
    import deixis

    picture = Pillow.effect_noise((80, 60), 50).convert("RGB")
    model = deixis.load_model(f"onnx:{folder}" if (folder / "manifest.json").exists() else folder)
    uses: dict[str, Callable[[], object]] = {
        "embed_images": lambda: model.embed_images([picture]),
        "embed_texts": lambda: model.embed_texts([TEXT]),
        "score": lambda: model.score([picture], [TEXT]),
        "ground": lambda: model.ground(picture, ["a dog"]),
        "describe": lambda: model.describe(picture, count=2),
    }
    _several(*uses.values())


def _runs(folder: Path) -> None:
    import torch

    from deixis.corpus import open_corpus
    from deixis.training.recipe import RecipeFile, check_recipe
    from deixis.training.running import run_recipe
    from tests.search.conftest import SETTINGS, few_scenes, trained
    from tests.stores import make_store
    from tests.training.test_paper_runs import FIT, SENTENCES

    torch.set_num_threads(1)
    trained(SETTINGS, few_scenes(), folder / "pictures")
    whole = open_corpus("scenes")
    chosen = [
        [image for image in whole if image.split == split][:count] for split, count in (("train", 60), ("val", 15))
    ]
    corpus = whole.with_images(chosen[0] + chosen[1])
    stores = [make_store(folder.parent / "store", corpus)]
    for name, settings in (("sentences", SENTENCES), ("cca", {**FIT, "features": "image", "pairs": "sentences"})):
        recipe = RecipeFile("", check_recipe({"name": name, "corpus": "scenes", **settings}, "here"))
        run_recipe(recipe, corpus, stores, folder / name, torch.device("cpu"))


def _sign_run(folder: Path) -> None:
    import hashlib
    import json

    # As for bundles.
    if not (folder / "model.json").is_file() or not (folder / "model.safetensors").is_file():
        return
    with contextlib.suppress(Exception):
        record = json.loads((folder / "model.json").read_text())
        record["weights_sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        (folder / "model.json").write_text(json.dumps(record))


def _read_run(folder: Path) -> None:
    _several(lambda: _load_run(folder), lambda: command("runs", "show", folder))


def _load_run(folder: Path) -> None:
    import deixis

    model = deixis.load_model(folder)
    if "embed_texts" in model.abilities:
        model.embed_texts([TEXT])


def _recipes(folder: Path) -> None:
    from deixis.training.recipe import package_recipes
    from deixis.training.recipe_files import read_settings

    for name in list(package_recipes())[::4]:
        seed = folder / name.replace("/", "-")
        seed.mkdir(parents=True)
        (seed / "recipe.toml").write_text(read_settings(name).text)


def _read_recipe(folder: Path) -> None:
    command("recipes", folder / "recipe.toml", "--json")


# Indexes and projects


def _indexes(folder: Path) -> None:
    from deixis.search.indexing import index_folders
    from tests.search.fakes import CellModel, paint_many

    paint_many(folder.parent / "pictures", 40)
    for store in ("exact", "approximate"):
        index_folders(folder / store, [folder.parent / "pictures"], CellModel(), "cells", store=store)


def _read_index(folder: Path) -> None:
    from unittest.mock import patch

    from tests.search.fakes import CellModel

    pictures = folder.parent / "pictures"
    with contextlib.ExitStack() as patches:
        for module in ("loading", "search.engine", "search.doctor"):
            patches.enter_context(patch(f"deixis.{module}.load_search_model", lambda name, device="auto": CellModel()))
        _one_of(
            folder,
            lambda: command("search", "red", "--index", folder),
            lambda: command("similar", pictures / "0000.png", "--index", folder),
            lambda: command("doctor", "--index", folder),
            lambda: command("status", "--index", folder),
            lambda: command("index", pictures, "--index", folder),
        )


def _projects(folder: Path) -> None:
    from tests.annotation.test_tampered_projects import build

    (folder / "project").mkdir(parents=True)
    build(folder / "project" / "project.db")


def _read_project(folder: Path) -> None:
    file = folder / "project.db"
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    _one_of(
        folder,
        *(
            lambda name=name: command("annotate", name, file)
            for name in ("status", "workers", "review", "check", "stats")
        ),
        lambda: command("annotate", "settings", file),
        lambda: command("annotate", "export", file, out / "export", "--force"),
        lambda: command("annotate", "backup", file, out / "copy.db"),
        lambda: command("annotate", "invite", file, "--count", "2"),
        lambda: command("annotate", "invite", file, "--worker", "ann"),
        lambda: command("annotate", "suspend", file, "bob", "quality"),
    )


def _project_files(folder: Path) -> None:
    from deixis.annotation.task_rules import rule_files
    from tests.annotation.worlds import made_up_corpus

    seed = folder / "files"
    (seed / "rules").mkdir(parents=True)
    for name, text in rule_files().items():
        (seed / "rules" / name).write_text(text)
    (seed / "settings.toml").write_text(
        "test_questions = 2\nfirst_items = 2\nsolo = false\naddress = 'https://a.org'\n"
    )
    from deixis.corpus import write_corpus

    write_corpus(made_up_corpus(1), seed / "corpus", format="deixis")


def _read_project_files(folder: Path) -> None:
    project = folder.parent / "new.db"
    project.unlink(missing_ok=True)
    command(
        "annotate",
        "init",
        folder / "corpus",
        project,
        "--settings",
        folder / "settings.toml",
        "--rules",
        folder / "rules",
    )


# Features, scores and texts


def _stores(folder: Path) -> None:
    from deixis.corpus import open_corpus
    from tests.stores import make_store, random_boxes

    whole = open_corpus("scenes")
    make_store(folder / "store", whole.with_images(list(whole)[:20]), random_boxes(5), broken=(whole.images[3].id,))


def _read_store(folder: Path) -> None:
    from deixis.features.store import FeatureStore

    store = FeatureStore(folder)
    ids = list(store.ids)[:5]
    _several(
        lambda: store.image_vectors()[store.numbers(ids)],
        lambda: [(store.regions(id), store.boxes(id)) for id in ids],
        store.verify,
    )


def _arrays(folder: Path) -> None:
    from safetensors.numpy import save_file

    from deixis.corpus import write_corpus
    from tests.corpus.test_damage import sample

    generator = np.random.default_rng(0)
    seed = folder / "arrays"
    seed.mkdir(parents=True)
    np.save(seed / "scores.npy", generator.normal(size=(6, 30)).astype("float32"))
    np.save(seed / "images.npy", generator.normal(size=(6, 4)))
    np.save(seed / "captions.npy", generator.normal(size=(30, 4)))
    np.save(seed / "owners.npy", np.repeat(np.arange(6), 5))
    (seed / "owners.txt").write_text("\n".join(str(number // 5) for number in range(30)))
    np.savez_compressed(seed / "features.npz", ids=np.array(["101", "102"]), rows=generator.normal(size=(2, 4)))
    np.save(seed / "features.npy", generator.normal(size=(2, 4)))
    save_file({"rows": generator.normal(size=(2, 4))}, seed / "features.safetensors")
    write_corpus(sample(), folder.parent / "two.jsonl", format="deixis")


def _read_arrays(folder: Path) -> None:
    from deixis.corpus import open_corpus
    from deixis.features.precomputed import PrecomputedFeatures

    def features(name: str) -> None:
        corpus = open_corpus(folder.parent / "two.jsonl")
        PrecomputedFeatures(folder / name, corpus).vectors(corpus)

    _several(
        lambda: command("evaluate", "scores", folder / "scores.npy"),
        lambda: command("evaluate", "scores", folder / "scores.npy", "--caption-images", folder / "owners.npy"),
        lambda: command("evaluate", "scores", folder / "scores.npy", "--caption-images", folder / "owners.txt"),
        lambda: command("evaluate", "embeddings", folder / "images.npy", folder / "captions.npy"),
        *(lambda name=name: features(name) for name in ("features.npz", "features.npy", "features.safetensors")),
    )


def _texts(folder: Path) -> None:
    import json

    from deixis.text.concept_words import Concept, ConceptVocabulary
    from deixis.text.dependencies import Dependencies, Edge
    from deixis.text.entity_types import EntityTypes
    from deixis.text.twins import Twins, write_twins
    from deixis.text.vocabulary import Vocabulary

    seed = folder / "texts"
    seed.mkdir(parents=True)
    words = ("a", "dog", "two", "people", "snow", "red")
    Vocabulary(dict.fromkeys(words, 3)).save(seed / "vocabulary.tsv")
    rows = {word: " ".join(str(number / 7) for number in range(5)) for word in words}
    (seed / "glove.txt").write_text("".join(f"{word} {row}\n" for word, row in rows.items()))
    (seed / "word2vec.txt").write_text(f"{len(words)} 5\n" + (seed / "glove.txt").read_text())
    binary = b"".join(word.encode() + b" " + np.arange(5, dtype="<f4").tobytes() + b"\n" for word in words)
    (seed / "word2vec.bin").write_bytes(f"{len(words)} 5\n".encode() + binary)
    (seed / "trees.txt").write_text("(S (NP (DT a) (NN dog)) (VP (VBZ runs)))\n")
    (seed / "trees.jsonl").write_text('{"tokens":["a","dog"],"tree":["NP",["DT",0],["NN",1]]}\n')
    (seed / "bank.txt").write_text("a dog\ntwo people in the snow\n")
    (seed / "candidates.json").write_text(json.dumps({"101": "a dog", "102": "two people"}))
    (seed / "references.json").write_text(json.dumps({"101": ["a dog runs", "dog"], "102": ["people"]}))
    write_twins(seed / "twins.jsonl", [Twins("101", "on", "a dog on a cat", "a cat on a dog")])
    ConceptVocabulary((Concept("dog", "noun", 5, ("dog", "dogs")),)).save(seed / "concepts.tsv")
    Dependencies({("a", "dog"): (Edge(1, "det"), Edge(1, "ROOT"))}).save(seed / "edges.jsonl")
    EntityTypes.load().save(seed / "types.json")
    # A seed for each, so that an example reads what was damaged.
    for file in sorted(seed.iterdir()):
        if file.name != "references.json":
            (folder / file.stem).mkdir(exist_ok=True)
            file.rename(folder / file.stem / file.name)
    (seed / "references.json").rename(folder / "candidates" / "references.json")
    seed.rmdir()


def _read_texts(folder: Path) -> None:
    from deixis.adapters.phrase_bank import read_bank
    from deixis.text.concept_words import ConceptVocabulary
    from deixis.text.dependencies import Dependencies
    from deixis.text.entity_types import EntityTypes
    from deixis.text.trees import read_trees
    from deixis.text.twins import read_twins
    from deixis.text.vector_files import read_word_vectors
    from deixis.text.vocabulary import Vocabulary

    reads: dict[str, Callable[[Path], object]] = {
        "vocabulary.tsv": Vocabulary.load,
        "glove.txt": read_word_vectors,
        "word2vec.txt": read_word_vectors,
        "word2vec.bin": read_word_vectors,
        "trees.txt": read_trees,
        "trees.jsonl": read_trees,
        "bank.txt": read_bank,
        "candidates.json": lambda file: command("evaluate", "captions", file, folder / "references.json"),
        "twins.jsonl": read_twins,
        "concepts.tsv": ConceptVocabulary.load,
        "edges.jsonl": Dependencies.load,
        "types.json": EntityTypes.load,
    }
    _several(*(partial(reads[file.name], file) for file in folder.iterdir() if file.name in reads))


def _results(folder: Path) -> None:
    from deixis.metrics.results import load

    root = Path(__file__).parent.parent.parent / "results"
    for number, file in enumerate(sorted(root.rglob("*.json"))[::40]):
        try:
            load(file)
        except DeixisError:
            continue
        (folder / f"{number}").mkdir(parents=True)
        (folder / f"{number}" / file.name).write_bytes(file.read_bytes())


def _read_results(folder: Path) -> None:
    _several(*(lambda file=file: command("results", "show", file) for file in folder.iterdir()))


def _sentences(folder: Path) -> None:
    texts = (
        TEXT,
        'two dogs -"people" "a red car"',
        "a street without cars, no people but not -snow",
        "naïve café 狗 😀",
    )
    for number, text in enumerate(texts):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "text").write_text(text)


def _read_sentence(folder: Path) -> None:
    from deixis.search.queries import parse_query
    from deixis.text.tokens import tokenize

    text = (folder / "text").read_bytes()[:100_000].decode(errors="surrogateescape")
    _several(
        lambda: parse_query(text),
        lambda: tokenize(text),
        lambda: command("text", "parse", text.replace("\0", "")[:2000]),
        lambda: _walk(folder.parent, text.replace("\0", "")),
    )


def _walk(folder: Path, pattern: str) -> None:
    from deixis.search.walking import Walk, check_patterns

    check_patterns([pattern])
    list(Walk(bytes(folder), [pattern]))


READERS = {
    reader.name: reader
    for reader in (
        Reader("corpus", _corpora, _read_corpus),
        Reader("archive", _archives, _read_corpus),
        Reader("picture", _pictures, _read_pictures),
        Reader("bundle", _bundles, _read_model, _sign_bundle),
        Reader("run", _runs, _read_run, _sign_run),
        Reader("recipe", _recipes, _read_recipe),
        Reader("index", _indexes, _read_index, databases=True),
        Reader("project", _projects, _read_project, databases=True),
        Reader("project-files", _project_files, _read_project_files),
        Reader("store", _stores, _read_store),
        Reader("arrays", _arrays, _read_arrays),
        Reader("texts", _texts, _read_texts),
        Reader("results", _results, _read_results),
        Reader("sentence", _sentences, _read_sentence, special=False),
    )
}
