"""From a dependency parse to a constituency tree, by projecting phrases from heads.

Every word projects a phrase by its tag (a noun NP, a verb VP and with a subject S, a preposition PP …), which contains
the phrases of its dependents: complements inside, each modifier after a noun in one more NP. So noun phrases nest as
the HM-LSTM needs: "two people sitting on rocking chairs" is an NP over "two people" and a VP over "rocking chairs".
Labels are those of the Penn Treebank, relations those of spaCy's English models (ClearNLP).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from deixis.corpus.spans import Span
from deixis.errors import DeixisError
from deixis.text.trees import Tree, flattened

#: Deeper dependencies are attached at this depth.
DEPENDENCY_DEPTH = 80
#: Further modifiers after a noun get no NP of their own.
NESTED_MODIFIERS = 12

SUBJECTS = frozenset({"nsubj", "nsubjpass", "csubj", "csubjpass", "expl"})
AUXILIARIES = frozenset({"aux", "auxpass"})
#: What may come between a subject and its verb.
_VERB_GROUP = AUXILIARIES | {"neg", "advmod", "preconj"}
_COORDINATORS = frozenset({"cc", "punct"})
#: Dependents that are a bare tag if they have no dependents; others are a phrase even of one word.
_BARE = AUXILIARIES | _COORDINATORS | frozenset(
    {"det", "predet", "amod", "nummod", "compound", "nmod", "case", "neg", "mark", "quantmod", "preconj", "meta"}
)  # fmt: skip
_PREMODIFIERS = frozenset({"det", "predet", "amod", "nummod", "compound", "nmod", "poss", "case", "quantmod", "neg"})
#: Dependents after a noun that belong to its own group ("man 's", "number 28").
_CLOSE = frozenset({"case", "nummod", "compound", "det"})
#: Relations in which an adjective or a verb form is used as a noun ("the elderly").
NOMINAL_RELATIONS = frozenset({"nsubj", "nsubjpass", "dobj", "pobj", "dative", "appos"})
NOMINAL_TAGS = frozenset({"PRP", "PRP$", "CD", "EX", "WP", "WP$", "WDT", "DT", "PDT", "$", "FW", "ADD"})
_WH_TAGS = frozenset({"WDT", "WP", "WP$", "WRB"})


class Word(msgspec.Struct, frozen=True):
    """A token of a dependency parse; `head` is the index of its head, or its own index for a root."""

    text: str
    head: int
    relation: str = ""
    #: Part of speech in the Penn Treebank's tags.
    tag: str = ""
    lemma: str = ""
    #: If the word is the head of a known phrase, its span, which must be one noun phrase (`deixis.text.repair`).
    phrase: Span | None = None


def constituency(words: Sequence[Word]) -> Tree:
    """The tree of a caption. Crossing dependencies are lifted until none cross; several roots are joined in an S."""
    if not words:
        return Tree("S")
    heads = projective_heads([-1 if word.head == index else word.head for index, word in enumerate(words)])
    dependents: list[list[int]] = [[] for _ in words]
    roots: list[int] = []
    for index, head in enumerate(heads):
        (roots if head < 0 else dependents[head]).append(index)
    projection = _Projection(words, dependents)
    parts = [projection.root(root) for root in roots]
    return flattened(parts[0] if len(parts) == 1 else Tree("S", tuple(parts)))


def projective_heads(heads: Sequence[int]) -> list[int]:
    """Heads (-1 for a root), changed so that the descendants of every word are contiguous, and not too deep.

    The shortest dependency that another one crosses is lifted to its head's head (Nivre and Nilsson, ACL 2005), until
    none is left.

    >>> projective_heads([-1, 3, 0, 0])
    [-1, 0, 0, 0]
    """
    heads = list(heads)
    count = len(heads)
    if any(not -1 <= head < count or head == index for index, head in enumerate(heads)):
        raise DeixisError(f"a word hangs from no word among the {count}")
    while True:
        ways = [_way_up(heads, index) for index in range(count)]
        if _contiguous(ways):
            break
        crossed = [
            (abs(index - head), index)
            for index, head in enumerate(heads)
            if head >= 0 and any(head not in ways[k] for k in range(min(index, head) + 1, max(index, head)))
        ]
        _, index = min(crossed)
        heads[index] = heads[heads[index]]
    # The path to the root starts with the word itself.
    return [
        head if len(way) <= DEPENDENCY_DEPTH else way[-DEPENDENCY_DEPTH] for head, way in zip(heads, ways, strict=True)
    ]


def _way_up(heads: Sequence[int], index: int) -> list[int]:
    way = [index]
    while heads[way[-1]] >= 0:
        way.append(heads[way[-1]])
        if len(way) > len(heads):
            raise DeixisError("the heads of words form a circle")
    return way


def _contiguous(ways: Sequence[Sequence[int]]) -> bool:
    """Whether the descendants of every word are contiguous."""
    size, first, last = [0] * len(ways), list(range(len(ways))), list(range(len(ways)))
    for index, way in enumerate(ways):
        for above in way:
            size[above] += 1
            first[above], last[above] = min(first[above], index), max(last[above], index)
    return all(high - low + 1 == count for low, high, count in zip(first, last, size, strict=True))


class _Projection:
    """Builds the phrase of a word from the phrases of its dependents."""

    def __init__(self, words: Sequence[Word], dependents: Sequence[Sequence[int]]) -> None:
        self.words, self.dependents = words, dependents

    def root(self, index: int) -> Tree:
        node = self.phrase(index)
        if node.is_leaf:
            return Tree("FRAG", (node,))
        return Tree("S", (node,)) if node.label == "VP" else node

    def phrase(self, index: int) -> Tree:
        word = self.words[index]
        bare = word.relation in _BARE or word.tag == "PRP$" or not _is_word(word)
        if bare and word.phrase is None and not self.dependents[index]:
            return self.leaf(index)
        kind = self.kind(index) if word.phrase is None else "NP"
        if kind == "NP":
            return self.noun_phrase(index)
        return self.clause(index) if kind == "VP" else self.other_phrase(index, kind)

    def leaf(self, index: int) -> Tree:
        return Tree(self.words[index].tag or "X", token=index)

    def kind(self, index: int) -> str:
        """The label of the phrase that a word projects."""
        tag, relation = self.words[index].tag, self.words[index].relation
        below = {self.words[dependent].relation for dependent in self.dependents[index]}
        if relation in ("prep", "agent") or (tag in ("IN", "TO") and below & {"pobj", "pcomp"}):
            return "PP"
        if tag in ("NN", "NNS", "NNP", "NNPS") or tag in NOMINAL_TAGS:
            return "NP"
        if tag.startswith("VB") or tag == "MD":
            if relation in NOMINAL_RELATIONS or below & {"det", "poss"}:
                return "NP"
            return "ADJP" if relation in _PREMODIFIERS else "VP"
        if tag.startswith("JJ"):
            return "NP" if relation in NOMINAL_RELATIONS or below & {"det", "poss"} else "ADJP"
        if relation == "prt":
            return "PRT"
        by_tag = {"RB": "ADVP", "RBR": "ADVP", "RBS": "ADVP", "WRB": "WHADVP", "IN": "ADVP", "RP": "PRT", "UH": "INTJ"}
        return by_tag.get(tag, "FRAG")

    def sides(self, index: int) -> tuple[list[int], list[int]]:
        dependents = self.dependents[index]
        return [dependent for dependent in dependents if dependent < index], [
            dependent for dependent in dependents if dependent > index
        ]

    def relation(self, index: int) -> str:
        return self.words[index].relation

    def phrases(self, indices: Iterable[int]) -> list[Tree]:
        return [self.phrase(index) for index in indices]

    def modifiers(self, indices: Iterable[int]) -> list[Tree]:
        """Phrases before a head that is not a verb; a single adverb is a bare tag ("very tall")."""
        return [
            self.leaf(index) if self.relation(index) == "advmod" and not self.dependents[index] else self.phrase(index)
            for index in indices
        ]

    def noun_phrase(self, index: int) -> Tree:
        left, right = self.sides(index)
        outer, further = self._noun_group(index, left, right)
        inner = [*self.modifiers(left[outer:]), self.leaf(index)]
        while further and self.relation(right[0]) in _CLOSE:
            inner.append(self.phrase(right.pop(0)))
            further -= 1
        node = Tree(self._noun_label(index, left[outer:]), tuple(inner))
        node, after = self.extended(node, right[:further], nested=True)
        if after:
            node = Tree(node.label, (node, *after))
        node, after = self.extended(node, right[further:], nested=True)
        before = self.phrases(left[:outer])
        if before or after:
            has_subject = any(self.relation(dependent) in SUBJECTS for dependent in left[:outer])
            node = Tree("S" if has_subject else node.label, (*before, node, *after))
        return node

    def _noun_group(self, index: int, left: Sequence[int], right: Sequence[int]) -> tuple[int, int]:
        """How many dependents on the left are outside the noun's own group, and how many on the right are inside.

        Phrases before the group ("In the park , a man") are attached after everything that follows it.
        """
        phrase = self.words[index].phrase
        if phrase is not None:
            return sum(dependent < phrase[0] for dependent in left), sum(dependent < phrase[1] for dependent in right)
        outer = next((n for n in range(len(left), 0, -1) if not self._in_noun_group(left, n - 1)), 0)
        while outer < len(left) and self.relation(left[outer]) in _COORDINATORS:
            outer += 1
        return outer, next(
            (n for n, dependent in enumerate(right) if self.relation(dependent) not in _CLOSE), len(right)
        )

    def _in_noun_group(self, left: Sequence[int], index: int) -> bool:
        relation = self.relation(left[index])
        if relation in _PREMODIFIERS or relation in _COORDINATORS or relation == "preconj":
            return True
        # An adverb or measure belongs to the group ("just two men") unless a comma follows it ("outside , a man").
        return relation in ("advmod", "npadvmod") and "punct" not in map(self.relation, left[index + 1 :])

    def _noun_label(self, index: int, left: Sequence[int]) -> str:
        word = self.words[index]
        if word.tag in _WH_TAGS or any(self.words[d].tag in _WH_TAGS for d in left):
            return "WHNP"
        if word.phrase is not None:
            return "NP"
        if word.relation in ("nummod", "quantmod"):
            return "QP"
        return "NML" if word.relation in ("compound", "nmod") else "NP"

    def clause(self, index: int) -> Tree:
        left, right = self.sides(index)
        first = next((n for n in range(len(left), 0, -1) if self.relation(left[n - 1]) not in _VERB_GROUP), 0)
        before, group = left[:first], left[first:]
        joint = next((n for n, d in enumerate(right) if self.relation(d) in ("cc", "conj")), len(right))
        complements = right[:joint]
        while complements and self.relation(complements[-1]) == "punct":
            joint -= 1
            complements.pop()
        node = Tree("VP", (self.leaf(index), *self.phrases(complements)))
        further = right[joint:]
        conjuncts = [dependent for dependent in further if self.relation(dependent) == "conj"]
        # "is riding and smiling" shares the auxiliary; "is riding and has smiled" does not.
        shared = bool(conjuncts) and not self._has(conjuncts[0], AUXILIARIES | SUBJECTS)
        # A conjunct with its own subject is joined to the whole clause.
        clauses = next((n for n, d in enumerate(further) if d in conjuncts and self._has(d, SUBJECTS)), len(further))
        while clauses < len(further) and clauses and self.relation(further[clauses - 1]) in _COORDINATORS:
            clauses -= 1
        if not shared:
            node = self.with_auxiliaries(node, group)
        node, after = self.extended(node, further[:clauses])
        if shared:
            node = self.with_auxiliaries(node, group)
        return self.sentence(index, before, node, after, further[clauses:])

    def _has(self, index: int, relations: frozenset[str]) -> bool:
        return any(self.relation(dependent) in relations for dependent in self.dependents[index])

    def with_auxiliaries(self, node: Tree, group: Sequence[int]) -> Tree:
        """One VP for each auxiliary, outward from the verb: `(VP is (VP being (VP eaten)))`."""
        between: list[Tree] = []
        for dependent in reversed(group):
            if self.relation(dependent) in AUXILIARIES:
                node = Tree("VP", (self.phrase(dependent), *between, node))
                between = []
            else:
                between.insert(0, self.phrase(dependent))
        return Tree("VP", (*between, *node.children)) if between else node

    def sentence(
        self, index: int, before: Sequence[int], node: Tree, after: Sequence[Tree], clauses: Sequence[int]
    ) -> Tree:
        """S of a subject and a VP, and SBAR if a subordinating or relative word comes first."""
        relation = self.relation(index)
        lead = 0
        subordinate = relation in ("relcl", "advcl", "ccomp", "acl", "pcomp", "csubj")
        while subordinate and lead < len(before) and self._leads(before[lead]):
            lead += 1
        rest = self.phrases(before[lead:])
        if rest or after:
            node = Tree("S", (*rest, node, *after))
        if clauses:
            node = node if node.label == "S" else Tree("S", (node,))
            node, trailing = self.extended(node, clauses)
            node = Tree("S", (*node.children, *trailing)) if trailing else node
        if lead or (relation == "relcl" and node.label == "S"):
            node = node if node.label == "S" else Tree("S", (node,))
            return Tree("SBAR", (*self.phrases(before[:lead]), node))
        return node

    def _leads(self, index: int) -> bool:
        return self.relation(index) == "mark" or self.words[index].tag in _WH_TAGS

    def other_phrase(self, index: int, kind: str) -> Tree:
        left, right = self.sides(index)
        first = next((n for n in range(len(left), 0, -1) if self.relation(left[n - 1]) in SUBJECTS), 0)
        joint = next((n for n, d in enumerate(right) if self.relation(d) in ("cc", "conj", "punct")), len(right))
        node = Tree(kind, (*self.modifiers(left[first:]), self.leaf(index), *self.phrases(right[:joint])))
        node, after = self.extended(node, right[joint:])
        if first or after:
            node = Tree("S" if first else kind, (*self.phrases(left[:first]), node, *after))
        return node

    def extended(self, node: Tree, right: Sequence[int], *, nested: bool = False) -> tuple[Tree, list[Tree]]:
        """Attach what follows: conjuncts as siblings; other phrases each in one more node if `nested`.

        Returns the node, and trailing punctuation or coordinators.
        """
        waiting: list[Tree] = []
        joining = False
        for index, dependent in enumerate(right):
            relation = self.relation(dependent)
            if relation in _COORDINATORS:
                waiting.append(self.phrase(dependent))
                continue
            parts = self.conjuncts(dependent, node.label) if relation == "conj" else [self.phrase(dependent)]
            if relation == "conj" and not joining:
                node = Tree(node.label, (_bare(node), *waiting, *parts))
            elif joining == (relation == "conj") and (joining or not nested or index >= NESTED_MODIFIERS):
                node = Tree(node.label, (*node.children, *waiting, *parts))
            else:
                node = Tree(node.label, (node, *waiting, *parts))
            joining = relation == "conj"
            waiting = []
        return node, waiting

    def conjuncts(self, index: int, label: str) -> list[Tree]:
        """A conjunct and its own conjuncts, as siblings."""
        node = self.phrase(index)
        _, right = self.sides(index)
        phrase = self.words[index].phrase
        if phrase is not None and phrase[1] > max(right, default=0):
            return [node]
        if right and node.label == label and self.relation(right[-1]) == "conj" and len(node.children) > 1:
            return list(node.children)
        return [_bare(node) if node.label == label else node]


def _bare(node: Tree) -> Tree:
    """In "black and white" the conjuncts are words; noun and verb phrases remain phrases."""
    single = len(node.children) == 1 and node.children[0].is_leaf
    return node.children[0] if single and node.label in ("ADJP", "ADVP", "NML", "QP") else node


def _is_word(word: Word) -> bool:
    return any(character.isalnum() for character in word.text)
