"""The answers given about one image, by question: the input of the workflow."""

from __future__ import annotations

from collections.abc import Iterable

from deixis.annotation.workflow_records import AcceptFix, BoxesFix, ChainsFix, Fix, Judgment, MentionsFix


class Answers:
    """Valid judgments and fixes of one image. A later fix replaces an earlier one of the same thing."""

    def __init__(self, judgments: Iterable[Judgment], fixes: Iterable[Fix] = ()) -> None:
        self._by_key: dict[str, list[Judgment]] = {}
        self.used: set[int] = set()
        self.comments: list[Judgment] = []
        for judgment in judgments:
            self._by_key.setdefault(judgment.key, []).append(judgment)
            if judgment.comment:
                self.comments.append(judgment)
        self.mentions: MentionsFix | None = None
        self.chains: list[tuple[str, ...]] = []
        self.boxes: dict[str, BoxesFix] = {}
        self._accepted: set[str] = set()
        for fix in fixes:
            match fix:
                case MentionsFix():
                    self.mentions = fix
                case ChainsFix():
                    moved = {mention for chain in fix.chains for mention in chain}
                    rest = [tuple(mention for mention in chain if mention not in moved) for chain in self.chains]
                    self.chains = [chain for chain in (*rest, *fix.chains) if chain]
                case BoxesFix():
                    # Removed first, so that the dictionary is ordered by each mention's latest fix.
                    self.boxes.pop(fix.mention, None)
                    self.boxes[fix.mention] = fix
                case AcceptFix():
                    self._accepted.add(fix.key)

    def first(self, key: str) -> Judgment | None:
        """The judgment of a question that needs only one opinion, or None."""
        judgment = next(iter(self._by_key.get(key, ())), None)
        if judgment is not None:
            self.used.add(judgment.id)
        return judgment

    def nth(self, key: str, index: int) -> Judgment | None:
        """The judgment of a question at this index, counted from 0, or None if there are fewer."""
        judgments = self._by_key.get(key, [])
        if index >= len(judgments):
            return None
        self.used.add(judgments[index].id)
        return judgments[index]

    def accepted(self, review_key: str) -> bool:
        return review_key in self._accepted
