"""What a model sees in single pictures, for the picture page: phrases grounded, captions, phrases of regions.

The model is passed in; what it cannot do is refused with an error. It works in one thread, one picture after the other,
and what was computed of a picture is kept for a while: a sentence that is being typed asks for it again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from deixis.adapters.changed_sentences import fits_better
from deixis.errors import DeixisError
from deixis.model import Description, Grounding, Model
from deixis.web.search_desk import Busy
from deixis.web.shelf import Shelf

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Answer = TypeVar("Answer")

#: Sentences about a picture.
CAPTIONS = 3
#: Pictures that were looked at, and descriptions of pictures, that are kept.
LOOKED, DESCRIBED = 32, 1000
#: Questions that may wait; more are refused at once.
WAITING = 50


class Captioned(NamedTuple):
    """Captions of a picture, and where in it those of their phrases are that it seems to show, the surest first."""

    size: tuple[int, int]
    captions: Sequence[Description]
    phrases: Sequence[Grounding]


class Grounded(NamedTuple):
    """The phrases of a sentence in a picture, and the sentence with one thing changed, where that fits better."""

    phrases: Sequence[Grounding]
    fits_better: Sequence[str]


class Unable(DeixisError):
    """No model that could do it was given to the server."""


class Sight:
    """The model of a server; pictures are known to it by a key that identifies their content."""

    def __init__(self, model: Model | None = None) -> None:
        self._model = model or Model()
        self._looked: Shelf[str, Any] = Shelf(LOOKED)
        self._described: Shelf[str, Captioned] = Shelf(DESCRIBED)
        self._thread = ThreadPoolExecutor(1, "sight")
        self._room = BoundedSemaphore(WAITING)

    @property
    def can_ground(self) -> bool:
        return "ground" in self._model.abilities

    @property
    def can_describe(self) -> bool:
        return "describe" in self._model.abilities

    def ground(self, key: str, load: Callable[[], Picture], sentence: str) -> Future[Grounded]:
        """Ground the phrases of a sentence; `load` decodes the picture where it is not known yet."""
        if not self.can_ground:
            raise Unable("this server has no model that points at phrases")
        return self._submit(lambda: self._ground(self._looked.get(key, lambda: self._model.look(load())), sentence))

    def _ground(self, looked: Any, sentence: str) -> Grounded:
        return Grounded(self._model.ground(looked, sentence), fits_better(self._model, looked, sentence))

    def describe(self, key: str, load: Callable[[], Picture]) -> Future[Captioned]:
        """Captions of a picture, and, where the model can ground, their phrases in it."""
        if not self.can_describe:
            raise Unable("this server has no model that describes pictures")
        return self._submit(lambda: self._described.get(key, lambda: self._describe(key, load())))

    def _describe(self, key: str, picture: Picture) -> Captioned:
        captions = self._model.describe(picture, CAPTIONS)
        phrases: dict[str, Grounding] = {}
        if self.can_ground:
            looked = self._looked.get(key, lambda: self._model.look(picture))
            for caption in captions:
                for grounding in self._model.ground(looked, caption.text):
                    if grounding.phrase not in phrases or grounding.score > phrases[grounding.phrase].score:
                        phrases[grounding.phrase] = grounding
        shown = [phrase for phrase in phrases.values() if phrase.is_there]
        return Captioned(picture.size, captions, sorted(shown, key=lambda phrase: -(phrase.presence or phrase.score)))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        if not self._room.acquire(blocking=False):
            raise Busy("too many pictures are being looked at; try again in a moment")
        answer = self._thread.submit(work)
        answer.add_done_callback(lambda _: self._room.release())
        return answer
