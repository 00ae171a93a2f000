"""Trees: their spans, their drawing, and files that give back exactly what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.errors import DeixisError, InputError
from deixis.text.trees import DEPTH_LIMIT, Tree, check_tree, flattened, read_trees, tree_from_data, write_trees

TOKENS = ("two", "people", "on", "rocking", "chairs")
TREE = Tree(
    "NP",
    (
        Tree("NP", (Tree("CD", token=0), Tree("NNS", token=1))),
        Tree("PP", (Tree("IN", token=2), Tree("NP", (Tree("VBG", token=3), Tree("NNS", token=4))))),
    ),
)

words = st.text(max_size=6) | st.sampled_from(
    ["(", ")", "-LRB-", "-RRB-", "-LRB(", "\\", "\\u0028", "a b", "", "-LRB-LRB-"]
)
labels = st.sampled_from(["NP", "VP", "PP", "-LRB-", ".", ",", "PRP$"]) | st.text(min_size=1, max_size=3)


@st.composite
def tokens_and_trees(draw: st.DrawFn) -> tuple[tuple[str, ...], Tree]:
    """Random trees: neighbours are grouped until one node is left."""
    tokens = tuple(draw(st.lists(words, max_size=8)))
    if not tokens:
        return (), Tree(draw(labels))
    row = [Tree(draw(labels), token=number) for number in range(len(tokens))]
    while len(row) > 1 or row[0].is_leaf:
        start = draw(st.integers(0, len(row) - 1))
        end = draw(st.integers(start + 1, len(row)))
        row[start:end] = [Tree(draw(labels), tuple(row[start:end]))]
        if all(not node.is_leaf for node in row) and len(row) > 1:
            row = [Tree(draw(labels), tuple(row))]
    return tokens, row[0]


@pytest.mark.parametrize("ending", ["ptb", "jsonl"])
@settings(max_examples=60)
@given(trees=st.lists(tokens_and_trees(), max_size=4))
def test_what_is_written_comes_back(
    ending: str, trees: list[tuple[tuple[str, ...], Tree]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trees") / f"trees.{ending}"
    write_trees(path, trees)
    assert read_trees(path) == trees
    assert len(path.read_bytes().decode().split("\n")) == len(trees) + 1


def test_brackets_are_those_of_the_treebank() -> None:
    expected = "(NP (NP (CD two) (NNS people)) (PP (IN on) (NP (VBG rocking) (NNS chairs))))"
    assert TREE.to_brackets(TOKENS) == expected
    assert Tree("FRAG", (Tree("-LRB-", token=0),)).to_brackets("(") == "(FRAG (\\u002dLRB- -LRB-))"


def test_treebank_files_run_over_lines(tmp_path: Path) -> None:
    (tmp_path / "wsj.mrg").write_text("\n( (S\n    (NP (DT a) (NN dog))\n    (VP (VBZ runs)) ))\n(S)\n")
    (tokens, tree), (nothing, empty) = read_trees(tmp_path / "wsj.mrg")
    assert tokens == ("a", "dog", "runs")
    assert tree.label == "ROOT"
    assert tree.spans("NP") == [(0, 2)]
    assert (nothing, empty) == ((), Tree("S"))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("(NP (NN dog))\n(NP (NN", 2, "not closed"),
        ("(NP (NN dog)))", 1, "outside all brackets"),
        ("\n\ndog", 3, "outside all brackets"),
        ("(NP (NN dog) cat)", 1, "is beside"),
        ("(NP (NN dog cat))", 1, "is beside"),
        ("(NP dog (NN cat))", 1, "a word and a bracket"),
        ("(NP ())", 1, "no label"),
        ("(S (NP) (NN dog))", 1, "over no word"),
        ("(NN dog)", 1, "in no node"),
        ("(NP " * 5000, 1, "deeper than"),
    ],
)
def test_a_broken_bracket_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    (tmp_path / "trees.ptb").write_text(text)
    with pytest.raises(InputError, match=rf"trees\.ptb: line {line}: .*{problem}"):
        read_trees(tmp_path / "trees.ptb")


@pytest.mark.parametrize(
    "second",
    [
        "{",
        '{"tokens": ["dog"], "tree": ["NP", ["NN", 1]]}',
        '{"tokens": ["dog"], "tree": ["NP"]}',
        '{"tokens": ["dog"], "tree": ["NN", 0]}',
        '{"tokens": ["dog"], "tree": ["NP", ["", 0]]}',
        '{"tokens": ["dog"], "tree": ["NP", ["NN", true]]}',
        '{"tokens": ["dog"], "tree": ["NP", "NN"]}',
        '{"tokens": ["dog"], "tree": ["NP", ["NN", 0]], "more": 1}',
        '{"tokens": ["dog"], "tree": ' + '["NP", ' * 5000 + '["NN", 0]' + "]" * 5000 + "}",
    ],
)
def test_a_broken_json_file_is_refused_with_its_line(tmp_path: Path, second: str) -> None:
    first = json.dumps({"tokens": ["dog"], "tree": ["NP", ["NN", 0]]})
    (tmp_path / "trees.jsonl").write_text(f"{first}\n{second}\n")
    with pytest.raises(InputError, match=r"trees\.jsonl: line 2: is no tree"):
        read_trees(tmp_path / "trees.jsonl")


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trees.ptb").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_trees(tmp_path / "trees.ptb")
    with pytest.raises(InputError, match="absent"):
        read_trees(tmp_path / "absent.ptb")


def test_spans_and_data() -> None:
    assert TREE.span == (0, 5)
    assert TREE.spans() == [(0, 5), (0, 2), (3, 5)]
    assert TREE.spans("PP") == [(2, 5)]
    assert TREE.depth == 4
    assert tree_from_data(TREE.to_data()) == TREE


def test_the_drawing_has_a_line_for_every_phrase() -> None:
    assert TREE.drawn(TOKENS).split("\n") == [
        "NP",
        "├─ NP two people",
        "└─ PP",
        "   ├─ IN on",
        "   └─ NP rocking chairs",
    ]


def test_a_tree_that_is_none_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="not the 4 tokens"):
        write_trees(tmp_path / "trees.ptb", [(TOKENS[:4], TREE)])
    assert not (tmp_path / "trees.ptb").exists()


def test_deep_trees_are_hung_up_flat() -> None:
    deep = Tree("NN", token=0)
    for _ in range(3 * DEPTH_LIMIT):
        deep = Tree("NP", (deep,))
    flat = flattened(deep)
    check_tree(flat, 1)
    assert flat.depth == DEPTH_LIMIT
    assert flattened(TREE) == TREE
    assert flattened(TREE, 3).to_brackets(TOKENS) == (
        "(NP (NP (CD two) (NNS people)) (PP (IN on) (VBG rocking) (NNS chairs)))"
    )
