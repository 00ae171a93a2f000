"""A bundle learns a person's pictures, keeps what it knew, and says honestly whether it got better."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from deixis.adapters.bundles import default_relevance, read_bundle
from deixis.base import finetuning
from deixis.base.finetuning import Compared, Figures, divided, finetune, judged, with_words
from deixis.cli import app
from deixis.corpus import Corpus, make_caption, open_corpus, training_set, write_corpus
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError
from deixis.loading import load_model, load_search_model
from deixis.text.vocabulary import Vocabulary
from deixis.vision.reading import read_picture


@pytest.fixture(scope="module")
def own() -> Corpus:
    """Forty scenes without splits, whose captions have a word of their own."""
    images = list(scenes_corpus(40, size=(80, 60)))
    return scenes_corpus(40, size=(80, 60)).with_images(
        [
            msgspec.structs.replace(
                image,
                split="",
                captions=tuple(make_caption(f"{each.text} zorblax") for each in image.captions),
                chains=(),
            )
            for image in images
        ],
        name="mine",
    )


def test_pictures_are_held_out_once_each(own: Corpus) -> None:
    parts = divided(own, seed=1)
    assert parts.splits == {"train": 20, "test": 10, "val": 10}
    assert {image.id for image in parts} == {image.id for image in own}
    assert [image.split for image in divided(own, seed=1)] == [image.split for image in parts]
    assert [image.split for image in divided(own, seed=2)] != [image.split for image in parts]
    # A corpus that has all three keeps them.
    assert divided(parts, seed=5) == parts
    with pytest.raises(DeixisError, match="29 captioned pictures"):
        divided(own.with_images(list(own)[:29]), seed=0)


def test_words_that_are_new_come_to_those_that_are_known(own: Corpus) -> None:
    known = Vocabulary({"a": 9, "dog": 3, "zebra": 3})
    more = with_words(known, training_set(divided(own, seed=0)))
    assert {"a", "dog", "zebra", "zorblax"} <= set(more.words)


def compared(before: float, after: float) -> Compared:
    return Compared(50, Figures(before, 0, 0), Figures(after, 0, 0))


def test_the_verdict_is_of_the_held_out_part_and_of_general_pictures() -> None:
    surely, hardly = torch.full((50,), 0.1), torch.linspace(-1, 1.02, 50)
    kept, report = judged(compared(40, 52), compared(60, 59), surely)
    assert (kept, report) == (
        True,
        "Better: mean recall on 50 held-out pictures 40.0 → 52.0, on 50 general ones 60.0 → 59.0",
    )
    for own, general, gains, why in (
        (compared(40, 39), compared(60, 60), surely, "chance"),
        (compared(40, 41), compared(60, 60), hardly, "chance"),
        (compared(40, 52), compared(60, 50), surely, "forgot"),
    ):
        kept, report = judged(own, general, gains)
        assert not kept
        assert report.startswith("Not worth keeping")
        assert why in report


def test_what_got_better_is_a_bundle_that_knows_the_new_words_and_points_as_before(
    own: Corpus, untrained_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "judged", lambda *found: (True, "Better"))
    monkeypatch.setattr(finetuning, "GENERAL", 12)
    base, general = read_bundle(untrained_bundle), open_corpus("scenes")
    outcome, manifest = finetune(base, own, general, tmp_path / "out", epochs=3, seed=0)
    assert manifest is not None
    assert (outcome.learned_from, outcome.held_out.pictures, outcome.general.pictures) == (20, 10, 12)
    assert outcome.new_words >= 1
    assert outcome.share in finetuning.SHARES
    before, after = load_search_model(f"onnx:{untrained_bundle}"), load_search_model(f"onnx:{tmp_path / 'out'}")
    assert before.unknown_words("a zorblax") == ["zorblax"]
    assert after.unknown_words("a zorblax") == []
    assert after.identity.weights_sha256 != before.identity.weights_sha256
    texts = ["a man", "zorblax"]
    assert not np.allclose(
        before.embed_queries(texts).embeddings, after.embed_queries(texts).embeddings, atol=1e-4, rtol=0
    )
    picture = next(iter(own))
    seen = read_picture(own, picture)
    found = [load_model(f"onnx:{folder}").ground(seen, "a man") for folder in (untrained_bundle, tmp_path / "out")]
    assert found[0] == found[1]
    # The same again is the same to the bit.
    _, again = finetune(base, own, general, tmp_path / "again", epochs=3, seed=0)
    assert again is not None
    assert again.weights_sha256 == manifest.weights_sha256


def test_the_command_writes_nothing_that_is_no_better(
    own: Corpus, untrained_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "judged", lambda *found: (False, "Not worth keeping"))
    monkeypatch.setattr(finetuning, "GENERAL", 12)
    write_corpus(own, tmp_path / "mine", format="folder", pictures=True)
    asked = ["finetune", str(tmp_path / "mine"), "--out", str(tmp_path / "out"), "--model", f"onnx:{untrained_bundle}"]
    done = CliRunner().invoke(app, [*asked, "--epochs", "1", "--json"])
    report = json.loads(done.stdout)
    assert (report["kept"], report["out"], report["verdict"]) == (False, None, "Not worth keeping")
    assert done.exit_code == 1
    assert {"before", "after"} <= report["held_out"].keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    done = CliRunner().invoke(app, [*asked[:-1], "nothing"])
    assert "unknown model" in str(done.exception)
    for file in (tmp_path / "mine").glob("captions.*"):
        file.unlink()
    done = CliRunner().invoke(app, asked)
    assert "mine: has no captions: add a captions.csv with the columns file and caption" in str(done.exception)


def test_what_words_usually_score_stays_with_them_when_others_are_learned() -> None:
    known = Vocabulary({"dog": 9, "submarine": 3, "zebra": 2})
    thresholds = msgspec.structs.replace(default_relevance(25), usual=np.array([40, -7, 120], np.int8).tobytes())
    learned = finetuning.for_words(thresholds, known, Vocabulary({"dog": 9, "zorblax": 5, "submarine": 3, "zebra": 2}))
    assert learned is not None
    assert np.frombuffer(learned.usual, np.int8).tolist() == [40, 0, -7, 120]
    assert msgspec.structs.replace(learned, usual=thresholds.usual) == thresholds
