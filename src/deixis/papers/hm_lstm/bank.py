"""Banks of phrases for a run: those of its training captions, or a file's; encoded once and kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from deixis.errors import InputError
from deixis.files import atomic_write, cache_folder
from deixis.papers.hm_lstm.network import HMMatcher
from deixis.papers.hm_lstm.task import PHRASES
from deixis.text.tokens import tokens_of
from deixis.text.trees import read_trees
from deixis.training.feature_model import Embedding
from deixis.training.runs import read_model

Bank = list[tuple[str, ...]]


def load_bank(matcher: Any, run: Path, file: Path | None = None) -> Bank:
    """The phrases of a file, one a line, or those that a run kept of its training captions, with their trees."""
    if file is None:
        if not (run / PHRASES).exists():
            raise InputError(run, "kept no phrases of its training captions; give some with --bank FILE")
        kept = read_trees(run / PHRASES)
        if isinstance(matcher, HMMatcher):
            matcher.trees.bank.add(kept)
        return [tokens for tokens, _ in kept]
    try:
        lines = file.read_bytes().decode().splitlines()
    except OSError as fault:
        raise InputError(file, fault.strerror or str(fault)) from None
    except UnicodeDecodeError:
        raise InputError(file, "is not UTF-8 text") from None
    found = list(dict.fromkeys(tokens for line in lines if (tokens := tokens_of(line))))
    if not found:
        raise InputError(file, "has no phrase")
    return found


def encode_bank(matcher: Any, run: Path, bank: Bank) -> None:
    """Let a matcher with a space of its own remember a bank's embeddings, from the cache or worked out into it."""
    if not isinstance(matcher, Embedding):
        return
    digest = hashlib.sha256(read_model(run).weights_sha256.encode())
    for tokens in bank:
        digest.update(b"\n" + " ".join(tokens).encode(errors="surrogatepass"))
    path = cache_folder() / "banks" / f"{digest.hexdigest()[:32]}.safetensors"
    try:
        rows = safetensors.numpy.load(path.read_bytes())["rows"]
    except (OSError, KeyError, safetensors.SafetensorError):
        rows = matcher.encode_texts(bank).astype(np.float16)
        with atomic_write(path) as stream:
            stream.write(safetensors.numpy.save({"rows": np.ascontiguousarray(rows)}))
    matcher.remember(bank, rows.astype(np.float32))
