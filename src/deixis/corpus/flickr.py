"""URLs of Flickr photos and the photo ids in them, which identify a photo across corpora."""

from __future__ import annotations

import re

#: The photo id in Flickr's URLs of picture files (https://www.flickr.com/services/api/misc.urls.html), in URLs of photo
#: pages, and in the URL written by `photo_address`.
_PHOTO_ID = re.compile(
    r"/([0-9]+)_[0-9a-f]+(?:_\w{1,2})?\.\w+(?:[?#].*)?$|/photos/[^/]+/([0-9]+)(?:[/?#].*)?$|[?&]id=([0-9]+)$"
)
_PHOTO_URL = "https://www.flickr.com/photo.gne?id="


def photo_id(address: str) -> str:
    """The photo id in a URL. Other URLs are returned unchanged, so that no id in them is lost."""
    match = _PHOTO_ID.search(address)
    return next(filter(None, match.groups())) if match else address


def photo_address(photo: str) -> str:
    """The URL of a photo. Text that is not a photo id is returned unchanged."""
    return _PHOTO_URL + photo if re.fullmatch("[0-9]+", photo) else photo
