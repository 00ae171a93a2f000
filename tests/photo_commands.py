"""The commands of the photo install, as a person would run them: index, search, similar, ground, describe, serve."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from deixis.corpus.scenes import scenes_corpus
from deixis.vision.reading import read_picture


def try_photo_commands(program: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """Run them all on a few drawn pictures, and check what they say.

    Args:
        program: what stands for `deixis`.
        environment: variables beside those of this process; PYTHONPATH is not passed on.
    """
    corpus, pictures = scenes_corpus(3), folder / "pictures"
    pictures.mkdir()
    for image in corpus:
        read_picture(corpus, image).save(pictures / f"{image.id}.png")
    picture = str(next(pictures.iterdir()))
    passed = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables = {**passed, "DEIXIS_INDEX": str(folder / "index"), "DEIXIS_CACHE": str(folder / "cache"), **environment}

    def run(*arguments: str, code: int = 0) -> str:
        command = [*program, *arguments]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stderr if code else done.stdout

    run("index", str(pictures))
    # Whether a match is called one is another question: 1 where none is.
    answers = []
    for arguments in (("search", "a tree"), ("similar", picture), ("ground", picture, "a man beside a red car")):
        done = subprocess.run(
            [*program, *arguments, "--json"], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done
        assert str(pictures) in done.stdout, done
        answers.append(done.stdout)
    grounded = json.loads(answers[-1])
    assert [phrase["phrase"] for phrase in grounded["phrases"]] == ["a man", "a red car"]
    assert run("describe", picture, "--json")
    # Training is an extra.
    report = run("train", "two-branch/sentences-bi", "--corpus", "scenes", "--out", str(folder / "run"), code=2)
    needs = "deixis: this needs torch, which is not installed: pip install 'deixis[research]'"
    assert report == f"{needs} (without a GPU: see docs/install.md)\n"
    with subprocess.Popen(
        [*program, "serve", "--port", "0"], cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().partition(" at ")[2].split(" ")[0]
            with urlopen(f"{address}/?q=tree", timeout=60) as page:
                assert b"<html" in page.read()
            with urlopen(f"{address}/api/map", timeout=60) as reply:
                assert len(json.load(reply)["points"]) == 3
        finally:
            server.terminate()
