"""Constituency trees of captions (the HM-LSTM paper, section 3): what they are, and their files.

Two formats, chosen by the file's ending, both with an exact way back: `.jsonl` with one object a line, and the
brackets of the Penn Treebank (`.ptb`, `.mrg`, `.txt`), which may run over several lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deixis.corpus.spans import Span
from deixis.errors import DeixisError, InputError
from deixis.files import read_utf8, write_text

#: No tree is deeper, so that walking one never exhausts Python's stack.
DEPTH_LIMIT = 200


class Tree(msgspec.Struct, frozen=True, gc=False):
    """A node over `children`, or a leaf: the tag of token number `token`. Only the tree of no tokens has neither."""

    label: str
    children: tuple[Tree, ...] = ()
    token: int = -1

    @property
    def is_leaf(self) -> bool:
        return self.token >= 0

    @property
    def span(self) -> Span:
        """First token, and one past the last."""
        first = last = self
        while first.children:
            first = first.children[0]
        while last.children:
            last = last.children[-1]
        return (first.token, last.token + 1) if first.is_leaf else (0, 0)

    def subtrees(self) -> Iterator[Tree]:
        """This node and all below it, a node before its children, from left to right."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def leaves(self) -> list[Tree]:
        return [node for node in self.subtrees() if node.is_leaf]

    def spans(self, label: str = "NP") -> list[Span]:
        """The spans of all nodes with this label, outer ones first; each span once."""
        return list(dict.fromkeys(node.span for node in self.subtrees() if node.label == label and not node.is_leaf))

    @property
    def depth(self) -> int:
        """The number of nodes on the longest path from the root to a leaf."""
        deepest, row = 0, [self]
        while row:
            deepest += 1
            row = [child for node in row for child in node.children]
        return deepest

    def to_data(self) -> list[Any]:
        """Nested lists: `["NP", ["DT", 0], ["NN", 1]]`."""
        return [self.label, self.token] if self.is_leaf else [self.label, *(child.to_data() for child in self.children)]

    def to_brackets(self, tokens: Sequence[str]) -> str:
        """One line of brackets: `(NP (DT a) (NN dog))`. Brackets in words are written -LRB- and -RRB-."""
        if self.is_leaf:
            return f"({_escape(self.label)} {_escape(tokens[self.token])})"
        return f"({' '.join([_escape(self.label), *(child.to_brackets(tokens) for child in self.children)])})"

    def drawn(self, tokens: Sequence[str]) -> str:
        """The tree as lines of text; a node over words alone takes one line."""
        return "\n".join(self._lines(tokens))

    def _lines(self, tokens: Sequence[str]) -> list[str]:
        if self.is_leaf or all(child.is_leaf for child in self.children):
            start, end = self.span
            return [f"{self.label} {' '.join(tokens[start:end])}".rstrip()]
        lines = [self.label]
        for child in self.children:
            last = child is self.children[-1]
            first, *rest = child._lines(tokens)
            lines += [f"{'└─' if last else '├─'} {first}", *(f"{'  ' if last else '│ '} {line}" for line in rest)]
        return lines


#: The tokens of a caption and the tree over them.
TokensAndTree = tuple[tuple[str, ...], Tree]


def noun_phrases(tokens: Sequence[str], tree: Tree, label: str = "NP") -> Iterator[TokensAndTree]:
    """Each phrase of a tree with the tree that it has there, its own tokens counted from 0; of one span the outer.

    >>> tree = Tree("S", (Tree("V", token=0), Tree("NP", (Tree("DT", token=1), Tree("NN", token=2)))))
    >>> [(words, own.to_data()) for words, own in noun_phrases(("see", "a", "dog"), tree)]
    [(('a', 'dog'), ['NP', ['DT', 0], ['NN', 1]])]
    """
    seen: set[Span] = set()
    for node in tree.subtrees():
        if node.label == label and not node.is_leaf and node.span not in seen:
            seen.add(node.span)
            start, end = node.span
            yield tuple(tokens[start:end]), _shifted(node, -start)


def _shifted(tree: Tree, by: int) -> Tree:
    if tree.is_leaf:
        return Tree(tree.label, token=tree.token + by)
    return Tree(tree.label, tuple(_shifted(child, by) for child in tree.children))


def check_tree(tree: Tree, tokens: int) -> None:
    """Raise `DeixisError` unless the leaves are the tokens in order, every node has a label and none is too deep."""
    if tree.depth > DEPTH_LIMIT:
        raise DeixisError(f"the tree is deeper than {DEPTH_LIMIT} nodes")
    if tree.is_leaf:
        raise DeixisError(f"tag {tree.label} is in no node")
    for node in tree.subtrees():
        if not node.label or (node.is_leaf and node.children):
            raise DeixisError("a node has no label, or is a leaf with children")
        if not node.is_leaf and not node.children and tokens:
            raise DeixisError(f"node {node.label} is over no token")
    if [leaf.token for leaf in tree.leaves()] != list(range(tokens)):
        raise DeixisError(f"the leaves are not the {tokens} tokens in order")


def flattened(tree: Tree, limit: int = DEPTH_LIMIT) -> Tree:
    """The same tree, with everything deeper than `limit` nodes made flat."""
    if tree.is_leaf or not tree.children:
        return tree
    if limit <= 2:
        return Tree(tree.label, tuple(tree.leaves()))
    return Tree(tree.label, tuple(flattened(child, limit - 1) for child in tree.children))


def write_trees(path: str | Path, trees: Iterable[TokensAndTree]) -> None:
    """Write trees, one per line, as JSON or brackets depending on the file's suffix."""
    lines = []
    for tokens, tree in trees:
        check_tree(tree, len(tokens))
        if Path(path).suffix == ".jsonl":
            lines.append(msgspec.json.encode({"tokens": tokens, "tree": tree.to_data()}).decode())
        else:
            lines.append(tree.to_brackets(tokens))
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_trees(path: str | Path) -> list[TokensAndTree]:
    """Read trees. Raises `InputError` that names the line."""
    lines = read_utf8(path).split("\n")
    return list(_json_trees(path, lines) if Path(path).suffix == ".jsonl" else _bracket_trees(path, lines))


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    tokens: tuple[str, ...]
    tree: list[Any]


def _json_trees(path: str | Path, lines: Sequence[str]) -> Iterator[TokensAndTree]:
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=_Line)
            tree = tree_from_data(record.tree)
            check_tree(tree, len(record.tokens))
        except (msgspec.DecodeError, DeixisError, RecursionError) as fault:
            raise InputError(path, f"is no tree ({fault})", f"line {line_number}") from None
        yield record.tokens, tree


def tree_from_data(data: Any, depth: int = 1) -> Tree:
    """The inverse of `Tree.to_data`."""
    if depth > DEPTH_LIMIT:
        raise DeixisError(f"the tree is deeper than {DEPTH_LIMIT} nodes")
    match data:
        case [str(label), int(token)] if token >= 0 and not isinstance(token, bool):
            return Tree(label, token=token)
        case [str(label), *children]:
            return Tree(label, tuple(tree_from_data(child, depth + 1) for child in children))
    raise DeixisError("a node is neither [label, token] nor [label, node, …]")


class _Open:
    """A bracket that is not closed yet."""

    def __init__(self, line: int) -> None:
        self.line, self.label, self.word = line, "", ""
        self.children: list[Tree] = []


def _bracket_trees(path: str | Path, lines: Sequence[str]) -> Iterator[TokensAndTree]:
    stack: list[_Open] = []
    tokens: list[str] = []
    for line_number, line in enumerate(lines, start=1):
        for piece in _PIECE.findall(line):
            location = f"line {line_number}"
            if piece == "(":
                if stack and stack[-1].word:
                    raise InputError(path, f"node {stack[-1].label} has a word and a bracket", location)
                stack.append(_Open(line_number))
                if len(stack) > DEPTH_LIMIT:
                    raise InputError(path, f"a tree is deeper than {DEPTH_LIMIT} nodes", location)
            elif not stack:
                raise InputError(path, f"{piece!r} stands outside all brackets", location)
            elif piece != ")":
                top = stack[-1]
                if top.word or top.children:
                    raise InputError(path, f"{piece!r} is beside other parts of node {top.label}", location)
                if top.label:
                    top.word = piece
                else:
                    top.label = piece
            else:
                node = _closed(path, location, stack.pop(), tokens, outermost=not stack)
                if stack:
                    stack[-1].children.append(node)
                else:
                    yield tuple(tokens), node
                    tokens = []
    if stack:
        raise InputError(path, "a bracket is not closed", f"line {stack[-1].line}")


def _closed(path: str | Path, location: str, node: _Open, tokens: list[str], *, outermost: bool) -> Tree:
    # The Treebank's own files have an outermost bracket without a label.
    label = _unescape(node.label) or ("ROOT" if outermost and node.children else "")
    if not label:
        raise InputError(path, "a bracket has no label", location)
    if node.word:
        if outermost:
            raise InputError(path, f"tag {label} is in no node", location)
        tokens.append(_unescape(node.word))
        return Tree(label, token=len(tokens) - 1)
    if not node.children and not outermost:
        raise InputError(path, f"node {label} is over no word", location)
    return Tree(label, tuple(node.children))


_PIECE = re.compile(r"[()]|[^\s()]+")
_SPECIAL = re.compile(r"[\\\s]|-(?=[LR]RB)")
_WRITTEN = re.compile(r"-LRB-|-RRB-|\\u([0-9a-f]{4})|\\e")


def _escape(text: str) -> str:
    """White space, backslashes and what would read as an escaped bracket become `\\uXXXX`; `\\e` is the empty word."""
    text = _SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.replace("(", "-LRB-").replace(")", "-RRB-") or "\\e"


def _unescape(text: str) -> str:
    signs = {"-LRB-": "(", "-RRB-": ")", "\\e": ""}
    return _WRITTEN.sub(lambda match: chr(int(match[1], 16)) if match[1] else signs[match[0]], text)
