"""The embedded corpus: what it promises of its captions, boxes, splits, twins and speed."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations as pairs_of
from pathlib import Path

import pytest
from PIL import Image as Picture
from PIL import ImageChops, ImageStat

from deixis.corpus import NOT_VISUAL, NOT_VISUAL_CHAIN, TYPES, Box, Corpus, open_corpus, write_corpus
from deixis.corpus.formats import get_format
from deixis.corpus.scenes import HELD_OUT, count_swaps, order_swaps, painting, scenes_corpus, scenes_of
from deixis.corpus.scenes.backdrops import Canvas
from deixis.corpus.scenes.build import KEPT, ScenePictures
from deixis.corpus.scenes.captions import write_captions
from deixis.corpus.scenes.catalog import FAIR, KINDS, NIGHT, RAIN, SETTINGS
from deixis.corpus.scenes.drawn_figures import OVERSAMPLING, box_of
from deixis.corpus.scenes.facts import combinations, facts_of, holds
from deixis.corpus.scenes.painting import paint_figures, paint_surroundings, render
from deixis.corpus.scenes.staging import Scene
from deixis.errors import DeixisError

#: Of `scenes_corpus(40, seed=7)`; changes when any caption, box or chain does, which every stored result should know.
FINGERPRINT = "707bed607eb320d414da9044ed137e0adbf4010599b60ed4bdbb1364d7d646c5"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("scenes")


@pytest.fixture(scope="module")
def scenes(corpus: Corpus) -> dict[str, Scene]:
    return dict(scenes_of(corpus))


def test_the_corpus_is_annotated_as_flickr30k_entities_is(corpus: Corpus) -> None:
    assert corpus.splits == {"train": 1000, "val": 200, "test": 200, "unseen": 200}
    chain_types: Counter[str] = Counter()
    for image in corpus:
        assert (image.width, image.height, image.file) == (320, 240, f"{image.id}.png")
        assert len({caption.text for caption in image.captions}) == 5
        types = image.chain_types()
        for chain in image.chains:
            chain_types.update(types[chain.id])
            assert types[chain.id], "every chain is mentioned"
            assert bool(chain.boxes) + chain.scene + chain.no_box == 1
        for box in image.boxes:
            assert 0 <= box.x1 < box.x2 <= 320
            assert 0 <= box.y1 < box.y2 <= 240
            assert all(edge == int(edge) for edge in (box.x1, box.y1, box.x2, box.y2))
    assert set(chain_types) == set(TYPES)
    assert min(chain_types.values()) >= 100
    kinds = [chain for image in corpus for chain in image.chains]
    assert len(kinds) > 5 * len(corpus)
    assert sum(len(chain.boxes) > 1 for chain in kinds) > 500
    assert sum(chain.scene for chain in kinds) > 500
    assert sum(chain.no_box for chain in kinds) > 100


def test_chains_are_shared_by_captions_and_boxes_by_chains(corpus: Corpus) -> None:
    mentions = Counter(
        len({number for number, caption in enumerate(image.captions) for p in caption.phrases if p.chain == chain.id})
        for image in corpus
        for chain in image.chains
    )
    assert sum(count for captions, count in mentions.items() if captions > 1) > 0.4 * mentions.total()
    sharing = [
        image.id
        for image in corpus
        for one, other in pairs_of(image.chains, 2)
        if set(one.boxes) < set(other.boxes)  # a boy, and two children of whom he is one
    ]
    assert len(set(sharing)) > 0.2 * len(corpus)


def test_phrases_say_what_their_chain_is(corpus: Corpus) -> None:
    """A phrase's noun belongs to the type it is given, and non-visual phrases have no chain."""
    noun_types = {noun.split()[-1]: kind.type for kind in KINDS.values() for noun in kind.nouns}
    checked = 0
    for image in corpus:
        for caption in image.captions:
            ends = [0]
            for phrase in caption.phrases:
                assert phrase.start >= ends[-1], "phrases do not overlap"
                ends.append(phrase.end)
                assert (phrase.chain == NOT_VISUAL_CHAIN) == (phrase.types == (NOT_VISUAL,))
                noun = caption.tokens[phrase.end - 1].lower()
                if noun in noun_types:
                    assert phrase.types == (noun_types[noun],)
                    checked += 1
    assert checked > 10_000


def test_captions_are_english_enough(corpus: Corpus) -> None:
    words = set()
    for image in corpus:
        for caption in image.captions:
            text = caption.text
            assert text.endswith(" .")
            assert text[0].isupper()
            assert text.split(" ") == list(caption.tokens)
            assert not re.search(r"[\[\]{}/]|\b(\w+) \1\b", text), text
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text.lower()), text
            assert not re.search(
                r"\b(two|three|four|five) (\w+ )?(dog|cat|man|woman|child|person|girl|boy|car)\b", text
            ), text
            # A plural subject that begins the sentence takes a plural verb, a singular one a singular verb.
            assert not re.match(r"(Two|Three|Four|Five) (\w+ )?\w+ (is|runs|stands|walks|jumps|sits|has)\b", text), text
            assert not re.match(
                r"An? (\w+ )?(man|woman|boy|girl|dog|cat|horse) (are|run|stand|walk|jump|sit|have)\b", text
            ), text
            # No one sits along a way or is distinguished by what both wear; the sky is said once.
            assert not re.search(r"\b(sit|sits|sitting) on .* (through|across|along|down)\b", text), text
            assert not re.search(r"\bon an? (\w+ )?(sofa|couch|bench) on .*(grass|floor)", text), text
            assert not re.search(r"(\ban? \w+ in an? \w+ shirt) and \1", text.lower()), text
            assert not re.search(r"\b(bird|birds) (is |are )?(float|hover)", text), text
            assert text.count("night") < 2, text
            words.update(token.lower() for token in caption.tokens)
    assert len(words) >= 150
    texts = [caption.text for image in corpus for caption in image.captions]
    assert len(set(texts)) > 0.95 * len(texts)
    for sign in (" is being ", " by ", "There is ", "There are ", " while ", " , and ", "In the ", "on a sunny day"):
        assert sum(sign in text for text in texts) > 10, sign


#: Words that tell the time of day or the weather → the conditions they are true of.
TIME_WORDS = {"sunset": "evening", "evening": "evening", "night": "night", "day": "day", "morning": "day"}
WEATHER_WORDS = {
    **dict.fromkeys(("sunny", "bright", "warm", "hot", "clear", "summer"), "fair"),
    **dict.fromkeys(("rainy", "wet", "rain"), "rain"),
    **dict.fromkeys(("winter", "cold"), "snow"),
}
SKY_WORDS = {"blue": ("day", "fair"), "gray": ("day", "rain"), "pale": ("day", "snow"), "orange": ("evening", "fair")}


def test_captions_name_the_time_and_weather_of_the_scene(corpus: Corpus, scenes: dict[str, Scene]) -> None:
    report: Counter[tuple[str, str]] = Counter()
    for image in corpus:
        time, weather = conditions = scenes[image.id].plan.conditions
        for caption in image.captions:
            for token in map(str.lower, caption.tokens):
                assert TIME_WORDS.get(token, time) == time, f"{image.id}: {caption.text}"
                assert WEATHER_WORDS.get(token, weather) == weather, f"{image.id}: {caption.text}"
                report[conditions] += token in TIME_WORDS or token in WEATHER_WORDS
            for sky in re.findall(r"(\w+) sky\b", caption.text):
                assert SKY_WORDS.get(sky, conditions) == conditions, f"{image.id}: {caption.text}"
            assert "during a game" not in caption.text or not re.search("match|break", caption.text)
    assert set(report) == {("day", "fair"), ("day", "rain"), ("day", "snow"), ("evening", "fair"), ("night", "fair")}
    assert min(report.values()) > 30


def test_rain_and_night_are_seen(scenes: dict[str, Scene]) -> None:
    """The same scene under other conditions: rain and night are darker, in the open and in a room's window."""
    for setting, area in {"park": (0, 0, 320, 90), "street": (0, 0, 320, 90), "room": (30, 22, 152, 52)}.items():
        scene = next(scene for scene in scenes.values() if scene.plan.setting == setting)._replace(figures=(), tags={})
        scene = scene._replace(grounded=(), speeding=())
        light = {}
        for conditions in SETTINGS[setting].conditions:
            picture = render(scene._replace(plan=scene.plan._replace(conditions=conditions)), 0, (320, 240))
            light[conditions] = ImageStat.Stat(picture.crop(area).convert("L")).mean[0]
        assert light[RAIN] < 0.95 * light[FAIR]
        assert light.get(NIGHT, 0) < 0.75 * light[FAIR]


#: A scene phrase's last word → what it refers to.
REFERENTS = {
    noun: referent
    for referent, nouns in {
        "place": "park beach street city road mountains field room stadium farm countryside pasture meadow "
        "savanna plain grassland",
        "ground": "grass sand snow ground asphalt floor",
        "water": "ocean water",
        "sky": "sky",
    }.items()
    for noun in nouns.split()
}


def test_what_captions_call_one_place_is_one_chain(corpus: Corpus) -> None:
    synonyms = 0
    for image in corpus:
        referents: dict[str, set[str]] = {}
        named: dict[str, set[str]] = {}
        for caption in image.captions:
            for phrase in caption.phrases:
                if phrase.types == ("scene",):
                    noun = caption.tokens[phrase.end - 1].lower()
                    referents.setdefault(phrase.chain, set()).add(REFERENTS[noun])
                    named.setdefault(phrase.chain, set()).add(noun)
        assert all(len(found) == 1 for found in referents.values()), f"{image.id}: a chain of two referents"
        assert len(set().union(*referents.values())) == len(referents), f"{image.id}: one referent, several chains"
        synonyms += any(len(nouns) > 1 for nouns in named.values())
    assert synonyms > 100


def test_nothing_on_the_ground_is_in_the_sky(corpus: Corpus, scenes: dict[str, Scene]) -> None:
    """All that is named before "in the sky", and nothing on the ground that balloons are said to be near to."""
    checked = 0
    for image in corpus:
        scene = scenes[image.id]
        for caption in image.captions:
            found = re.search(r"\b(in|over) the (\w+ )?sky\b", caption.text)
            if found:
                start = len(caption.text[: found.start()].split())
                before = [phrase for phrase in caption.phrases if phrase.end <= start]
                high = {box_of(f, "", 320, 240) for f in scene.figures if f.look.kind in ("bird", "kite", "balloon")}
                assert {box for phrase in before for box in image.chain_boxes(phrase.chain)} <= high, caption.text
                checked += 1
            if scene.plan.airborne:
                assert not re.search(
                    r"\b(near|close to|not far from) (an? )?(\w+ )?(bench|tree|house|flowers)", caption.text
                )
    assert checked > 30


def test_it_is_the_same_on_every_run_and_in_every_process(tmp_path: Path) -> None:
    assert scenes_corpus(40, seed=7).fingerprint == FINGERPRINT
    assert scenes_corpus(40, seed=8).fingerprint != FINGERPRINT
    code = "from deixis.corpus.scenes import scenes_corpus as s; c = s(40, seed=7); print(c.fingerprint);"
    code += "import hashlib; print(hashlib.sha256(b''.join(map(c.pictures.read, c.images[:5]))).hexdigest())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "DEIXIS_CACHE": str(tmp_path / hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith(FINGERPRINT)


def test_no_scene_occurs_twice_and_unseen_combinations_are_unseen(corpus: Corpus, scenes: dict[str, Scene]) -> None:
    plans = [scene.plan for scene in scenes.values()]
    assert len(set(plans)) == len(plans)
    families: dict[str, set[str]] = {}
    for image in corpus:
        families.setdefault(scenes[image.id].family, set()).add(image.split)
    assert all(len(splits) == 1 for splits in families.values())
    found = {image.id: combinations(scenes[image.id].plan) for image in corpus}
    seen = set().union(*(found[image.id] for image in corpus if image.split != "unseen"))
    assert not seen & HELD_OUT
    in_training = {word for image in corpus.split("train") for pair in found[image.id] for word in pair}
    assert {word for pair in HELD_OUT for word in pair} <= in_training
    unseen = [found[image.id] & HELD_OUT for image in corpus.split("unseen")]
    assert all(unseen)
    assert set().union(*unseen) == HELD_OUT


def test_held_out_words_do_not_meet_in_training_captions_either(corpus: Corpus) -> None:
    """Read from the text alone, with no help from the scene: phrases of the other splits never join a held-out pair."""
    joined = "purple (t-)?shirts?|green (hat|cap|beanie|knit hat)|red balloons?|green cars?|white cats?|black horses?"
    joined += "|three dogs|four cats|two horses|five dogs"
    meeting = dict.fromkeys(corpus.splits, 0)
    for image in corpus:
        for caption in image.captions:
            text = caption.text.lower()
            meeting[image.split] += bool(re.search(rf"\b({joined})\b", text))
    assert meeting.pop("unseen") > 100
    assert set(meeting.values()) == {0}


def test_siblings_differ_in_one_factor(scenes: dict[str, Scene]) -> None:
    families: dict[str, list[Scene]] = {}
    for scene in scenes.values():
        families.setdefault(scene.family, []).append(scene)
    siblings = [family for family in families.values() if len(family) > 1]
    assert sum(map(len, siblings)) > 0.5 * len(scenes)
    changes: Counter[str] = Counter()
    for first, *others in siblings:
        for other in others:
            one, two = first.plan, other.plan
            assert (one.setting, one.event, one.extras) == (two.setting, two.event, two.extras)
            if len(one.actors) != len(two.actors):
                changes["count"] += 1
            elif sorted(one.actors) == sorted(two.actors):
                changes["roles"] += 1
            else:
                assert [look._replace(colour="") for look in one.actors] == [
                    look._replace(colour="") for look in two.actors
                ]
                changes["colours"] += 1
    assert min(changes["count"], changes["roles"], changes["colours"]) > 50


def test_every_caption_is_true_and_its_twins_are_false(corpus: Corpus, scenes: dict[str, Scene]) -> None:
    for image in corpus:
        scene = scenes[image.id]
        for draft, caption in zip(write_captions(scene, 0), image.captions, strict=True):
            assert draft.text == caption.text
            assert all(holds(scene, claim) for claim in draft.claims), draft.text
    small = corpus.split("test")
    orders, counts = order_swaps(small), count_swaps(small)
    assert len(orders) > 0.4 * 5 * len(small)
    assert len(counts) > 0.1 * 5 * len(small)
    for swap in (*orders, *counts):
        assert swap.true == small[swap.image_id].captions[swap.caption].text
        assert swap.false not in {caption.text for caption in small[swap.image_id].captions}
    for swap in counts:
        changed = set(swap.true.lower().split()) ^ set(swap.false.lower().split())
        assert changed & {"two", "three", "four", "five", "six"}
        assert changed <= {"two", "three", "four", "five", "six", "a", "of", "pair", "couple", "group", "is", "are"}


def test_left_and_right_agree_with_the_boxes_and_swaps_do_not(corpus: Corpus) -> None:
    """An oracle from the records alone: the phrase before and the phrase after the relation, by their boxes."""
    checked = 0
    for swap in order_swaps(corpus):
        image = corpus[swap.image_id]
        caption = image.captions[swap.caption]
        found = re.search(r"(to the |on the |\b)(left|right) (side )?of ", caption.text)
        if not found:
            continue
        start = len(caption.text[: found.end()].split())
        named = [p for p in caption.phrases if p.types[0] not in ("clothing", "bodyparts", "scene", NOT_VISUAL)]
        before = [p for p in named if p.end <= start]
        after = [p for p in named if p.start >= start][: 2 if len(before) == 1 else 1]
        if len(after) == 2 and caption.tokens[after[0].end] != "and":
            after = after[:1]
        left, right = (_middle([box for p in side for box in image.chain_boxes(p.chain)]) for side in (before, after))
        assert (left < right) == (found[2] == "left"), caption.text
        # The twin says the same relation of the same two the other way round.
        assert found[2] in swap.false
        first, second = (caption.phrase_text(side[0]).lower() for side in (before, after))
        if first != second:
            assert swap.false.lower().index(second) < swap.false.lower().index(f"{found[2]} {found[3] or ''}of"), swap
        checked += 1
    assert checked > 300


def _middle(boxes: list[Box]) -> float:
    return min(box.x1 for box in boxes) + max(box.x2 for box in boxes)


def test_a_chaser_is_behind_whom_it_chases_and_both_directions_are_as_frequent(scenes: dict[str, Scene]) -> None:
    directions: Counter[tuple[str, bool]] = Counter()
    facing: Counter[int] = Counter()
    for scene in scenes.values():
        for fact in facts_of(scene.plan):
            if fact.verb not in ("chase", "follow", "drive", "throw", "left", "front", "above"):
                continue
            one, other = scene.figure(fact.subject[0]), scene.figure(fact.object[0])
            if fact.verb in ("chase", "follow", "drive"):
                assert one.facing == other.facing
                assert (other.x - one.x) * one.facing > 0
                facing[one.facing] += 1
            if fact.verb == "throw":
                assert one.facing == -other.facing
            # Kinds and looks in some fixed order: neither party is the subject more often than the other.
            directions[fact.verb, one.look < other.look] += 1
    for verb in ("chase", "follow", "left", "front"):
        share = directions[verb, True] / (directions[verb, True] + directions[verb, False])
        assert 0.4 <= share <= 0.6, verb
    assert 0.4 <= facing[1] / facing.total() <= 0.6


def test_left_and_right_are_said_equally_often(corpus: Corpus) -> None:
    texts = [caption.text for image in corpus for caption in image.captions]
    left, right = (
        sum(bool(re.search(rf"\b{side} (side )?of\b", text)) for text in texts) for side in ("left", "right")
    )
    assert 0.4 <= left / (left + right) <= 0.6


def _painted(scene: Scene, shown: list[int]) -> Picture.Image:
    """A scene with only some of its figures; backdrop, shadows and speed lines stay."""
    canvas = Canvas(Picture.new("RGB", (320 * OVERSAMPLING, 240 * OVERSAMPLING)), OVERSAMPLING)
    paint_surroundings(canvas, scene, 0)
    paint_figures(canvas.draw, [scene.figures[index]._replace(held=()) for index in shown], OVERSAMPLING)
    return canvas.picture.reduce(OVERSAMPLING)


def _changed(one: Picture.Image, other: Picture.Image) -> tuple[tuple[int, int, int, int], int]:
    difference = ImageChops.difference(one, other).convert("L").point(lambda level: 255 if level > 2 else 0)
    box = difference.getbbox()
    assert box is not None
    return box, difference.histogram()[255]


def test_boxes_are_exactly_what_is_drawn(scenes: dict[str, Scene]) -> None:
    for scene in list(scenes.values())[::40]:
        everything = list(range(len(scene.figures)))
        empty, full = _painted(scene, []), _painted(scene, everything)
        for index, figure in enumerate(scene.figures):
            box = box_of(figure, "", 320, 240)
            (x1, y1, x2, y2), alone = _changed(empty, _painted(scene, [index]))
            assert box.x1 <= x1 <= box.x1 + 1
            assert box.y1 <= y1 <= box.y1 + 1
            assert box.x2 - 1 <= x2 <= box.x2
            assert box.y2 - 1 <= y2 <= box.y2
            if figure.look.kind in ("leash", "string") or scene.plan.event in ("ride", "sit"):
                continue
            (x1, y1, x2, y2), visible = _changed(
                full, _painted(scene, [other for other in everything if other != index])
            )
            assert box.x1 <= x1 < x2 <= box.x2
            assert box.y1 <= y1 < y2 <= box.y2
            assert visible > 0.6 * alone, f"{scene.id}: {figure.look.kind} is hidden"


@pytest.mark.parametrize(
    ("part", "field"), [("shirt", "colour"), ("hat", "hat_colour"), ("lower", "lower_colour"), ("hair", "hair")]
)
def test_boxes_of_clothes_and_hair_are_exact(scenes: dict[str, Scene], part: str, field: str) -> None:
    """Recolour one garment: what changes in the picture lies within its box and nearly fills it."""
    filled = []
    for scene in list(scenes.values())[::25]:
        for index, figure in enumerate(scene.figures):
            # A beard has the hair's colour; under a hat, captions speak of long hair only.
            unfit = part == "hair" and (figure.look.beard or (figure.look.hat and figure.look.kind in ("man", "boy")))
            if figure.look.human and getattr(figure.look, field) and not unfit:
                other = "red" if getattr(figure.look, field) != "red" else "black"
                figures = list(scene.figures)
                figures[index] = figure._replace(look=figure.look._replace(**{field: other}))
                recoloured = render(scene._replace(figures=tuple(figures)), 0, (320, 240))
                (x1, y1, x2, y2), _ = _changed(render(scene, 0, (320, 240)), recoloured)
                box = box_of(figure, part, 320, 240)
                assert box.x1 <= x1 < x2 <= box.x2
                assert box.y1 <= y1 < y2 <= box.y2
                filled.append((x2 - x1) * (y2 - y1) / ((box.x2 - box.x1) * (box.y2 - box.y1)))
                break
    assert sum(filled) / len(filled) > 0.85


def test_pictures_have_the_size_asked_for_and_boxes_scale_with_it() -> None:
    small, large = scenes_corpus(8), scenes_corpus(8, size=(640, 480))
    assert large.pictures is not None
    for one, other in zip(small, large, strict=True):
        assert [caption.text for caption in one.captions] == [caption.text for caption in other.captions]
        for box, scaled in zip(one.scaled_boxes(640, 480), other.boxes, strict=True):
            assert (
                max(abs(box.x1 - scaled.x1), abs(box.y1 - scaled.y1), abs(box.x2 - scaled.x2), abs(box.y2 - scaled.y2))
                <= 4
            )
    picture = Picture.open(io.BytesIO(large.pictures.read(large.images[0])))
    assert picture.size == (640, 480)
    with pytest.raises(DeixisError, match="4 : 3"):
        scenes_corpus(8, size=(100, 100))
    with pytest.raises(DeixisError, match="-1 scenes"):
        scenes_corpus(-1)


def test_pictures_can_be_painted_in_another_process() -> None:
    corpus = scenes_corpus(4)
    assert corpus.pictures is not None
    sent = pickle.loads(pickle.dumps(corpus.pictures))  # noqa: S301
    assert [sent.read(image) for image in corpus] == [corpus.pictures.read(image) for image in corpus]


def test_a_painted_picture_is_kept_whole_and_painted_again_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    first = scenes_corpus(4)
    images, pictures = first.images, first.pictures
    assert isinstance(pictures, ScenePictures)
    painted = [pictures.read(image) for image in images]
    kept = {file.name: file for file in pictures.folder.iterdir()}
    assert sorted(kept) == [image.file for image in images]
    assert scenes_corpus(5).pictures.folder != pictures.folder  # type: ignore[union-attr]
    # Cut off by a loss of power, and absent: both are painted again.
    kept[images[0].file].write_bytes(painted[0][:-1])
    kept[images[1].file].unlink()
    with monkeypatch.context() as changed:
        changed.setattr(painting, "render", _refuse)
        assert [pictures.read(image) for image in images[2:]] == painted[2:]
        with pytest.raises(AssertionError):
            pictures.read(images[0])
    assert [pictures.read(image) for image in images] == painted
    os.utime(pictures.folder, (0, 0))
    for count in range(6, 6 + KEPT):
        corpus = scenes_corpus(count)
        assert corpus.pictures is not None
        corpus.pictures.read(corpus.images[0])
    # Those used last stay: the first, which nobody has asked for in years, makes room.
    assert len(list((tmp_path / "scenes").iterdir())) == KEPT
    assert not pictures.folder.exists()


def _refuse(*parts: object) -> None:
    raise AssertionError("it is painted again")


def test_swaps_need_drawn_scenes_but_follow_a_cut() -> None:
    corpus = scenes_corpus(64)
    cut = corpus.split("test")
    assert {swap.image_id for swap in order_swaps(cut)} <= {image.id for image in cut}
    with pytest.raises(DeixisError, match="drawn scenes"):
        order_swaps(Corpus(corpus.images))


@pytest.mark.parametrize("format", ["deixis", "flickr30k-entities"])
def test_it_survives_being_written_and_read_again(format: str, tmp_path: Path) -> None:
    corpus = scenes_corpus(16)
    write_corpus(corpus, tmp_path, format=format, pictures=True)
    again = open_corpus(tmp_path, cache=False)
    assert again == get_format(format).keep(corpus)
    assert again.pictures is not None
    assert [image.captions for image in again] == [image.captions for image in corpus]
    assert [image.boxes for image in again] == [image.boxes for image in corpus]
    for image in again:
        assert Picture.open(io.BytesIO(again.pictures.read(image))).size == (320, 240)


def test_a_thousand_scenes_take_less_than_thirty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time, so that a busy machine does not count; pictures by a sample of 50, which nobody has painted."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    start = time.process_time()
    corpus = scenes_corpus(1000)
    written = time.process_time() - start
    assert corpus.pictures is not None
    for image in corpus.images[::20]:
        corpus.pictures.read(image)
    drawn = (time.process_time() - start - written) * 20
    assert written + drawn < 30
