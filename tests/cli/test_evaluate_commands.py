"""`deixis evaluate` as a person types it: figures, records, and one clear line for every bad file."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deixis.cli import main
from deixis.metrics.ranking import captions_evenly, evaluate_ranking
from deixis.metrics.results import load
from deixis.metrics.score_blocks import MatrixScores


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the program: its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    scores = np.random.default_rng(0).standard_normal((20, 100)).astype(np.float32)
    scores[np.arange(100) // 5, np.arange(100)] += 1.5
    np.save(tmp_path / "scores.npy", scores)
    return tmp_path / "scores.npy"


def refused(done: tuple[int, str, str]) -> str:
    """The one line on standard error of a command that ended with code 2 and printed nothing else."""
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("deixis: ")
    return err


def test_json_has_both_directions_in_percent(run, matrix):
    code, out, _ = run("scores", matrix, "--json")
    found = json.loads(out)
    expected = evaluate_ranking(MatrixScores(np.load(matrix)), captions_evenly(20, 5))
    assert code == 0
    for direction in ("image_to_text", "text_to_image"):
        assert list(found[direction]) == ["r@1", "r@5", "r@10", "median_rank", "mean_rank"]
    assert {key: found[key] for key in expected.as_dict()} == expected.as_dict()
    assert 0 < found["mean_recall"] < 100


def test_the_table_names_both_directions_and_mr(run, matrix):
    code, out, _ = run("scores", matrix, "--folds", 5)
    assert code == 0
    assert "20 images × 100 captions, the mean of 5 folds" in out
    assert "image → text" in out
    assert "text → image" in out
    assert "mR " in out


def test_embeddings_score_as_the_matrix_of_their_cosines(run, tmp_path):
    generator = np.random.default_rng(1)
    images, captions = generator.standard_normal((12, 8)), generator.standard_normal((24, 8))
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "captions.npy", captions)
    files = (tmp_path / "images.npy", tmp_path / "captions.npy", "--captions-per-image", 2, "--json")
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, captions)]
    for options, product in (((), unit[0] @ unit[1].T), (("--dot",), images @ captions.T)):
        np.save(tmp_path / "scores.npy", product)
        assert run("embeddings", *files, *options) == run("scores", tmp_path / "scores.npy", *files[2:])


def test_uneven_captions_come_from_a_file(run, matrix, tmp_path):
    owners = np.sort(np.random.default_rng(2).integers(0, 20, 100))
    np.save(tmp_path / "owners.npy", owners)
    (tmp_path / "owners.txt").write_text("\n".join(map(str, owners)) + "\n")
    expected = evaluate_ranking(MatrixScores(np.load(matrix)), owners).as_dict()
    for name in ("owners.npy", "owners.txt"):
        _, out, _ = run("scores", matrix, "--caption-images", tmp_path / name, "--json")
        assert {key: json.loads(out)[key] for key in expected} == expected


def test_a_record_is_written_and_reads_again(run, matrix, tmp_path):
    code, out, _ = run("scores", matrix, "--folds", 2, "--json", "--out", tmp_path / "deep" / "result.json")
    assert code == 0
    record = load(tmp_path / "deep" / "result.json")
    assert record.metrics["mean_recall"] == json.loads(out)["mean_recall"]
    assert record.protocol.ties.startswith("pessimistic")
    digest = hashlib.sha256(matrix.read_bytes()).hexdigest()
    assert record.protocol.parameters == {
        "scores": "scores.npy",
        "scores_sha256": digest,
        "folds": 2,
        "tie_tolerance": 0.0,
    }
    assert record.counts == {"images": 20, "captions": 100, "folds": 2}


def test_a_record_is_not_replaced_unless_asked(run, matrix, tmp_path):
    out = tmp_path / "result.json"
    out.write_text("mine")
    code, _, err = run("scores", matrix, "--out", out)
    assert code == 2
    assert "--force" in err
    assert out.read_text() == "mine"
    assert run("scores", matrix, "--out", out, "--force")[0] == 0
    assert load(out).metrics


def test_a_record_that_cannot_be_written_is_one_line(run, matrix, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("scores", matrix, "--out", tmp_path / "file" / "result.json")
    assert code == 2
    assert err.count("\n") == 1


def test_images_of_captions_are_whole_numbers(run, matrix, tmp_path):
    owners = tmp_path / "owners.npy"
    np.save(owners, np.full(len(np.load(matrix)[0]), 0.9))
    code, _, err = run("scores", matrix, "--caption-images", owners)
    assert code == 2
    assert "type float64" in err


def test_big_endian_matrices_are_read(run, matrix, tmp_path):
    other = tmp_path / "big.npy"
    np.save(other, np.load(matrix).astype(">f4"))
    assert run("scores", other, "--json")[:2] == run("scores", matrix, "--json")[:2]


def test_whole_numbers_that_would_be_rounded_are_refused(run, tmp_path):
    huge = tmp_path / "huge.npy"
    values = np.zeros((2, 10), np.int64)
    values[1, 3] = 2**53 + 1
    np.save(huge, values)
    code, _, err = run("scores", huge)
    assert code == 2
    assert "row 1, column 3" in err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (np.zeros((100, 20)), "shape (100, 20): 100 images with 5 captions each need 500 captions, not 20; images "
         "and captions look exchanged: transpose the matrix"),
        (np.zeros((20, 40)), "if every image has 2, give --captions-per-image 2"),
        (np.zeros((20, 41)), "need 100 captions, not 41"),
        (np.zeros(100), "shape (100,): must be a matrix, images × captions"),
        (np.zeros((0, 5)), "shape (0, 5): must be a matrix"),
        (np.zeros((2, 10), complex), "type complex128"),
        (np.zeros((2, 10), bool), "type bool"),
        (np.where(np.arange(20).reshape(2, 10) == 13, np.nan, 0), "row 1, column 3: the score is nan"),
        (np.where(np.arange(20).reshape(2, 10) == 7, np.inf, 0), "row 0, column 7: the score is inf"),
    ],
)  # fmt: skip
def test_a_matrix_that_will_not_do_is_named_with_the_place(run, tmp_path, content, problem):
    file = tmp_path / "scores.npy"
    np.save(file, content)
    line = refused(run("scores", file))
    assert str(file) in line
    assert problem in line


def test_a_file_that_is_no_matrix_is_refused_and_nothing_in_it_is_run(run, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    np.save(tmp_path / "pickled.npy", np.array([[Trap()]]), allow_pickle=True)
    assert "holds Python objects" in refused(run("scores", tmp_path / "pickled.npy"))
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "text.npy").write_text("0.1 0.2\n")
    np.savez(tmp_path / "several.npz", np.zeros((2, 10)))
    for name in ("text.npy", "several.npz"):
        assert "cannot be read as a .npy matrix" in refused(run("scores", tmp_path / name))
    assert "No such file" in refused(run("scores", tmp_path / "absent.npy"))
    assert "is a folder" in refused(run("scores", tmp_path))


def test_damaged_files_never_end_in_a_traceback(run, matrix, tmp_path):
    whole = matrix.read_bytes()
    generator = np.random.default_rng(3)
    damaged = [whole[:length] for length in (0, 5, 6, 8, 10, 60, 128, 129, len(whole) - 1)]
    for _ in range(12):
        copy = bytearray(whole)
        copy[generator.integers(0, 128)] = generator.integers(0, 256)
        damaged.append(bytes(copy))
    file = tmp_path / "damaged.npy"
    for content in damaged:
        file.write_bytes(content)
        done = run("scores", file, "--json")
        if done[0]:
            assert str(file) in refused(done)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("0\n" * 99, "has 99 numbers for 100 captions"),
        ("0\n" * 50 + "dog\n", "entry 51: must hold one whole number per caption"),
        ("0\n" * 99 + "20\n", "entry 100: image 20, but images are 0 to 19"),
    ],
)
def test_a_list_of_images_that_will_not_do_is_named_with_the_place(run, matrix, tmp_path, content, problem):
    (tmp_path / "owners.txt").write_text(content)
    line = refused(run("scores", matrix, "--caption-images", tmp_path / "owners.txt"))
    assert str(tmp_path / "owners.txt") in line
    assert problem in line


def test_a_mistyped_run_is_reported_as_a_run(run):
    code, out, err = run("nothere", "--corpus", "scenes")
    assert (code, out) == (2, "")
    assert "there is no run folder and no command 'nothere'; commands: " in err


def test_how_a_run_was_trained_is_kept_with_its_figures_and_not_shown_among_them(run, monkeypatch, tmp_path):
    metrics = {"text_to_image": {"r@1": 30.0}, "training_pairs": 500, "batch": {"triplets": 1554.2}}
    result = SimpleNamespace(metrics=metrics, protocol=SimpleNamespace(name="retrieval"))
    for name in ("deixis.training.run_models.read_recipe", "deixis.cli.output.run_stores"):
        monkeypatch.setattr(name, lambda *given: None)
    monkeypatch.setattr("deixis.training.evaluating.evaluate_run", lambda *given, **report: [result])
    monkeypatch.setattr("deixis.cli.output.print_json", lambda shown: print(shown[0].metrics))
    code, out, _ = run(tmp_path, "--corpus", "scenes")
    assert (code, "r@1" in out, "triplets" in out, "training_pairs" in out) == (0, True, False, False)
    assert "triplets" in run(tmp_path, "--corpus", "scenes", "--json")[1]


def test_other_mistakes_are_reported_in_one_line(run, matrix, tmp_path):
    assert "20 images cannot be cut into 3 equal folds" in refused(run("scores", matrix, "--folds", 3))
    np.save(tmp_path / "owners.npy", np.zeros(100, int))
    both = ("--captions-per-image", 5, "--caption-images", tmp_path / "owners.npy")
    assert "give one of them" in refused(run("scores", matrix, *both))
    assert str(tmp_path / "scores.npy" / "result.json") in refused(
        run("scores", matrix, "--out", tmp_path / "scores.npy" / "result.json")
    )
    np.save(tmp_path / "images.npy", np.zeros((4, 3)))
    np.save(tmp_path / "captions.npy", np.full((20, 3), np.nan))
    pair = (tmp_path / "images.npy", tmp_path / "captions.npy")
    line = refused(run("embeddings", *pair))
    assert str(pair[1]) in line
    assert "second embeddings, row 0: NaN" in line
    np.save(tmp_path / "captions.npy", np.zeros((20, 4)))
    assert "has 4 dimensions, but images.npy has 3" in refused(run("embeddings", *pair))
    np.save(pair[1], np.ones((9, 3)))
    line = refused(run("embeddings", *pair))
    assert f"{pair[1]}: shape (9, 3), images.npy (4, 3): 4 images with 5 captions each need 20 captions, not 9" in line
