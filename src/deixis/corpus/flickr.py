"""Addresses of Flickr's photos, and the ids in them, which tell one photo in several corpora."""

from __future__ import annotations

import re

#: Where a photo's id stands in Flickr's addresses of its files (https://www.flickr.com/services/api/misc.urls.html),
#: of its page, and in the address that is written for it here.
_PHOTO_ID = re.compile(
    r"/([0-9]+)_[0-9a-f]+(?:_\w{1,2})?\.\w+(?:[?#].*)?$|/photos/[^/]+/([0-9]+)(?:[/?#].*)?$|[?&]id=([0-9]+)$"
)
_PHOTO_URL = "https://www.flickr.com/photo.gne?id="


def photo_id(address: str) -> str:
    """The photo's id in an address; an address of another form stays whole, so that no id in it is lost."""
    found = _PHOTO_ID.search(address)
    return next(filter(None, found.groups())) if found else address


def photo_address(photo: str) -> str:
    """Where a photo is; what is no photo's id stays whole."""
    return _PHOTO_URL + photo if re.fullmatch("[0-9]+", photo) else photo
