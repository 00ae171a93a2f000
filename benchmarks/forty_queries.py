"""Forty queries over 2,000 pictures that the model has not seen, judged by a person who looks at the first five.

    python benchmarks/forty_queries.py pictures FLICKR8K COCO_MINI --pictures-in FOLDER --out PICTURES
    deixis index PICTURES --index INDEX
    python benchmarks/forty_queries.py sheets --index INDEX --out SHEETS
    python benchmarks/forty_queries.py report --index INDEX [--json results/search/forty_queries.json]

The pictures are the first 1,000 test pictures of each corpus. The queries are in `forty_queries.toml`. `sheets` draws
the first five pictures of each query that nobody has judged yet; whether each fits is written by hand to
`forty_judgments.json`, so for the next model only pictures that are new among the first five need a look. `report`
counts:

precision_at_5      of the first five pictures, those that fit all of the query; for misspelled words and other
                    languages, of the query in English (`means`)
said_absent         queries that the program calls absent or does not know
answer_right        queries with a right answer about presence, judged by the first five pictures only: the program
                    calls a picture a match and something of the first five fits, or it calls none and no judged picture
                    fits; words it does not know: it calls none. A picture beyond the first five that is known to fit is
                    in `forty_judgments.json`, too
answer_right_if_always_matched   the same of a program that always calls a match, unless it does not know a word
precision_of_matches   of the first five, those called a match that fit
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageDraw
from reporting import measured_with, write_report

from deixis.corpus import open_corpus
from deixis.metrics.results import versions
from deixis.search.engine import Answer, SearchEngine

HERE = Path(__file__).parent
QUERIES, JUDGMENTS = HERE / "forty_queries.toml", HERE / "forty_judgments.json"
FIRST = 5
#: Test pictures of a corpus.
OF_EACH = 1000
#: Rows of a sheet, and the side of a picture on it.
ROWS, SIDE = 4, 300

Judgments = dict[str, dict[str, bool]]


def write_pictures(corpora: Sequence[str], pictures: Path, out: Path) -> None:
    """Copy the first `OF_EACH` test pictures of each corpus from a folder that has those of both."""
    out.mkdir(parents=True, exist_ok=True)
    for corpus in corpora:
        for image in list(open_corpus(corpus).split("test"))[:OF_EACH]:
            name = Path(image.file).name
            (out / name).write_bytes((pictures / name).read_bytes())


def answers(index: Path) -> list[tuple[dict[str, Any], Answer]]:
    engine = SearchEngine(index)
    queries = tomllib.loads(QUERIES.read_text("utf-8"))["query"]
    return [(query, engine.search(query["text"], FIRST)) for query in queries]


def name_of(path: bytes) -> str:
    return Path(os.fsdecode(path)).stem


def judgments() -> Judgments:
    return json.loads(JUDGMENTS.read_text("utf-8")) if JUDGMENTS.exists() else {}


def draw_sheets(index: Path, out: Path) -> None:
    """Draw what is not judged yet, a query per row, and print the names."""
    known = judgments()
    rows = []
    for query, answer in answers(index):
        new = [hit for hit in answer.hits if name_of(hit.path) not in known.get(query["text"], {})]
        if new:
            rows.append((query["text"], new))
            print(json.dumps([query["text"], *(name_of(hit.path) for hit in new)]))
    out.mkdir(parents=True, exist_ok=True)
    for number in range(0, len(rows), ROWS):
        part = rows[number : number + ROWS]
        sheet = Pillow.new("RGB", (FIRST * SIDE, len(part) * (SIDE + 20)), "white")
        draw = ImageDraw.Draw(sheet)
        for row, (text, hits) in enumerate(part):
            draw.text((5, row * (SIDE + 20) + 4), f"{number + row}: {text}", fill="black")
            for column, hit in enumerate(hits):
                with Pillow.open(os.fsdecode(hit.path)) as picture:
                    picture.thumbnail((SIDE, SIDE))
                    sheet.paste(picture.convert("RGB"), (column * SIDE, row * (SIDE + 20) + 20))
        sheet.save(out / f"sheet-{number // ROWS:02}.png")


def report(index: Path) -> dict[str, Any]:
    known, rows = judgments(), []
    found = answers(index)
    for query, answer in found:
        names = [name_of(hit.path) for hit in answer.hits]
        own = known.get(query["text"], {})
        assert all(name in own for name in names), f"not all judged: {query['text']}"
        fits = np.array([own[name] for name in names])
        called = np.array([hit.relevant for hit in answer.hits])
        unknown = bool(answer.unknown)
        rows.append(
            {
                "query": query["text"],
                "kind": query["kind"],
                "fitting": int(fits.sum()),
                "called": int(called.sum()),
                "called_fitting": int((called & fits).sum()),
                "unknown_words": answer.unknown,
                "suggestion": answer.suggestion,
                "right": not called.any() if unknown else is_right(called, fits, own),
                "right_if_always_matched": unknown or bool(fits.any()),
                "pictures": {name: bool(fit) for name, fit in zip(names, fits, strict=True)},
            }
        )
    kinds = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        kinds[row["kind"]].append(row)
    engine = SearchEngine(index)
    return {
        **measured_with(engine.model),
        "pictures": len(engine.collection),
        "all": means(rows),
        "by_kind": {kind: means(own) for kind, own in kinds.items()},
        "queries": rows,
        "command": "python benchmarks/forty_queries.py report --index INDEX",
        "versions": versions(),
    }


def is_right(called: NDArray[np.bool_], fits: NDArray[np.bool_], judged: dict[str, bool]) -> bool:
    """Whether the answer is right about presence, as far as pictures were judged."""
    return bool(fits.any()) if called.any() else not any(judged.values())


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    called = sum(row["called"] for row in rows)
    return {
        "queries": len(rows),
        "precision_at_5": round(float(np.mean([row["fitting"] / FIRST for row in rows])), 3),
        "said_absent": sum(not row["called"] for row in rows),
        "answer_right": sum(row["right"] for row in rows),
        "answer_right_if_always_matched": sum(row["right_if_always_matched"] for row in rows),
        "precision_of_matches": round(sum(row["called_fitting"] for row in rows) / called, 3) if called else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    pictures = commands.add_parser("pictures")
    pictures.add_argument("corpora", metavar="CORPUS", nargs="+")
    pictures.add_argument("--pictures-in", type=Path, required=True, help="a folder with the pictures of all corpora")
    pictures.add_argument("--out", type=Path, required=True)
    sheets, reported = commands.add_parser("sheets"), commands.add_parser("report")
    for command in (sheets, reported):
        command.add_argument("--index", type=Path, required=True)
    sheets.add_argument("--out", type=Path, required=True)
    reported.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.command == "pictures":
        write_pictures(options.corpora, options.pictures_in, options.out)
    elif options.command == "sheets":
        draw_sheets(options.index, options.out)
    else:
        write_report(report(options.index), options.json)


if __name__ == "__main__":
    main()
