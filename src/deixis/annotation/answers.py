"""The answers an image has got, by question: what the pure workflow reads from."""

from __future__ import annotations

from collections.abc import Iterable

from deixis.annotation.workflow_records import AcceptFix, BoxesFix, ChainsFix, Fix, Judgment, MentionsFix


class Answers:
    """Valid judgments and fixes of one image. Of several fixes of one thing the last counts."""

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
                    kept = [tuple(mention for mention in chain if mention not in moved) for chain in self.chains]
                    self.chains = [chain for chain in (*kept, *fix.chains) if chain]
                case BoxesFix():
                    # Set anew, so that the dictionary's order is the order of the latest fixes.
                    self.boxes.pop(fix.mention, None)
                    self.boxes[fix.mention] = fix
                case AcceptFix():
                    self._accepted.add(fix.key)

    def first(self, key: str) -> Judgment | None:
        """The judgment that settles a question of which one opinion is asked."""
        judgment = next(iter(self._by_key.get(key, ())), None)
        if judgment is not None:
            self.used.add(judgment.id)
        return judgment

    def number(self, key: str, place: int) -> Judgment | None:
        """The judgment of a question at this place, from 0, or None if there are not so many."""
        found = self._by_key.get(key, [])
        if place >= len(found):
            return None
        self.used.add(found[place].id)
        return found[place]

    def accepted(self, review_key: str) -> bool:
        return review_key in self._accepted
