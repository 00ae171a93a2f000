"""Which files are read as pictures, by their suffix, and what must be installed for them.

The content of a file decides how it is decoded; the suffix only says whether it is looked at. RAW files are the
exception: most begin like a TIFF, so the suffix decides.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from os.path import splitext

from deixis.corpus.pictures import PICTURE_SUFFIXES

#: Files of cameras, read by rawpy (the extra `raw`).
_RAW = """
    3fr arw cr2 cr3 dcr dng erf kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf srw x3f
"""
RAW_SUFFIXES = frozenset(f".{suffix}" for suffix in _RAW.split())
#: What to do about files that are skipped for their suffix.
RAW_REMEDY = "pip install 'deixis[raw]'"


def is_raw(name: str) -> bool:
    """Whether a name is that of a camera's RAW file."""
    return splitext(name)[1].lower() in RAW_SUFFIXES


@cache
def reads_raw() -> bool:
    return importlib.util.find_spec("rawpy") is not None


def readable_suffixes() -> frozenset[str]:
    """Suffixes of the files that can be read with what is installed."""
    return PICTURE_SUFFIXES | RAW_SUFFIXES if reads_raw() else PICTURE_SUFFIXES
