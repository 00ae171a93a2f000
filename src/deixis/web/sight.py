"""What models see in single pictures, for the picture page: phrases pointed at, captions, phrases of regions.

The models are passed in; where there is none, whoever asks is told so. They work in one thread, one picture after the
other, and what was seen in a picture is kept for a while: a sentence that is being typed asks of it again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from deixis.errors import DeixisError
from deixis.web.search_desk import Busy
from deixis.web.shelf import Shelf

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.adapters.descriptions import Said
    from deixis.base.phrase_pointer import GroundedPhrase

Answer = TypeVar("Answer")

#: Sentences about a picture.
CAPTIONS = 3
#: Pictures that were looked at, and what was said of pictures.
LOOKED, TOLD = 32, 1000
#: Questions that may wait; more are refused at once.
WAITING = 50


class Points(Protocol):
    """Finds the phrases of a sentence in a picture (`deixis.base.phrase_pointer`)."""

    def look(self, picture: Picture) -> Any:
        """See a picture once, to be asked of many sentences."""

    def ground(self, picture: Any, sentence: str) -> Sequence[GroundedPhrase]:
        """The phrases of a sentence, in its order, in what `look` saw."""


class Tells(Protocol):
    """Puts a picture into words (`deixis.base.describer`)."""

    def describe(self, picture: Picture, count: int) -> Sequence[Said]:
        """At most `count` sentences, best first."""


class Told(NamedTuple):
    """What is said of a picture, and where in it the phrases of that are, each once and the surest first."""

    size: tuple[int, int]
    captions: Sequence[Said]
    phrases: Sequence[GroundedPhrase]


class Unable(DeixisError):
    """No model that could do it was given to the server."""


class Sight:
    """The models of a server; pictures are known to it by a key that tells their content."""

    def __init__(self, pointer: Points | None = None, teller: Tells | None = None) -> None:
        self._pointer, self._teller = pointer, teller
        self._looked: Shelf[str, Any] = Shelf(LOOKED)
        self._told: Shelf[str, Told] = Shelf(TOLD)
        self._thread = ThreadPoolExecutor(1, "sight")
        self._room = BoundedSemaphore(WAITING)

    @property
    def can_ground(self) -> bool:
        return self._pointer is not None

    @property
    def can_describe(self) -> bool:
        return self._teller is not None

    def ground(self, key: str, load: Callable[[], Picture], sentence: str) -> Future[Sequence[GroundedPhrase]]:
        """Point at the phrases of a sentence; `load` decodes the picture where it is not known yet."""
        pointer = self._pointer
        if pointer is None:
            raise Unable("this server has no model that points at phrases")

        def work() -> Sequence[GroundedPhrase]:
            return pointer.ground(self._looked.get(key, lambda: pointer.look(load())), sentence)

        return self._submit(work)

    def describe(self, key: str, load: Callable[[], Picture]) -> Future[Told]:
        """Captions of a picture, and, where the server can point, their phrases in it."""
        teller = self._teller
        if teller is None:
            raise Unable("this server has no model that describes pictures")
        return self._submit(lambda: self._told.get(key, lambda: self._tell(teller, key, load())))

    def _tell(self, teller: Tells, key: str, picture: Picture) -> Told:
        captions = teller.describe(picture, CAPTIONS)
        phrases: dict[str, GroundedPhrase] = {}
        if (pointer := self._pointer) is not None:
            looked = self._looked.get(key, lambda: pointer.look(picture))
            for caption in captions:
                for each in pointer.ground(looked, caption.text):
                    if each.phrase not in phrases or each.score > phrases[each.phrase].score:
                        phrases[each.phrase] = each
        return Told(picture.size, captions, sorted(phrases.values(), key=lambda each: -each.score))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        if not self._room.acquire(blocking=False):
            raise Busy("too many pictures are being looked at; try again in a moment")
        answer = self._thread.submit(work)
        answer.add_done_callback(lambda _: self._room.release())
        return answer
