"""Make a million embeddings of picture regions, for `benchmarks/search.py`.

    python benchmarks/region_rows.py RUN FOLDER CORPUS...

RUN is a finished run of the kind `pictures`; each CORPUS has pictures. 49 windows of each picture's feature map (the
whole map, and windows of one and two thirds of its sides) are embedded as the whole picture would be. FOLDER gets
`rows.f16` (unit vectors, float16) and `rows.json` (how many, and their source). Pictures come in random order, so the
first rows are a sample of all.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reporting import write_report
from torch import Tensor
from torch.nn import functional as F

from deixis.corpus import Corpus, Image, open_corpus
from deixis.files import atomic_write
from deixis.training.runs import read_model
from deixis.vision.backbones import as_bytes, tower_backbone
from deixis.vision.crops import squash
from deixis.vision.reading import read_picture
from deixis.vision.tower import TOWER, PictureTower, load_tower

BATCH = 16
#: How long windows are, as shares of the map, and at how many places along it.
SHARES = ((1, 1), (2 / 3, 2), (1 / 3, 4))


def cell_windows(rows: int, columns: int) -> NDArray[np.int64]:
    """Windows `(windows, 4)` as first column, first row, last column + 1, last row + 1; the whole map is the first."""
    pairs = product(_spans(rows), _spans(columns))
    return np.array([(left, top, right, bottom) for (top, bottom), (left, right) in pairs], np.int64)


def _spans(cells: int) -> list[tuple[int, int]]:
    found = []
    for share, places in SHARES:
        length = max(1, round(share * cells))
        starts = np.linspace(0, cells - length, places).round().astype(int)
        found += [(start, start + length) for start in starts.tolist()]
    return list(dict.fromkeys(found))


@torch.no_grad()
def pooled_windows(tower: PictureTower, maps: Tensor, windows: NDArray[np.int64]) -> Tensor:
    """Embeddings `(batch, windows, dim)`: `tower.pooled` of each window of maps `(batch, channels, rows, columns)`.

    What is the same in every window (keys, values and means of cells) is computed once.
    """
    rows, columns = maps.shape[2:]
    inside = torch.zeros(len(windows), rows, columns, device=maps.device)
    for mask, (left, top, right, bottom) in zip(inside, windows.tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    inside = inside.flatten(1)
    cells = maps.flatten(2).transpose(1, 2)  # (batch, cells, channels)
    keys = tower.keys(cells)  # (batch, cells, queries)
    # A softmax over the cells of a window: the maximum of the whole map serves all of them.
    powers = (keys - keys.amax(1, keepdim=True)).exp().clamp_min(1e-30)
    weighted = powers.unsqueeze(-1) * tower.values(cells).unsqueeze(2)  # (batch, cells, queries, dim)
    attended = torch.einsum("wc,bcqx->bwqx", inside, weighted)
    attended = attended / torch.einsum("wc,bcq->bwq", inside, powers).unsqueeze(-1)
    means = tower.mean(torch.einsum("wc,bcx->bwx", inside / inside.sum(1, keepdim=True), cells))
    pooled: Tensor = means + tower.mix(F.gelu(attended.flatten(2)))
    return pooled


def check(tower: PictureTower, maps: Tensor, windows: NDArray[np.int64], pooled: Tensor) -> None:
    """Each window's embedding is that of the tower for the part of the map."""
    for number in range(0, len(windows), 8):
        left, top, right, bottom = windows[number]
        with torch.no_grad():
            wanted = tower.pooled(maps[:, :, top:bottom, left:right])
        assert torch.allclose(pooled[:, number], wanted, atol=1e-4), "a window is pooled otherwise than the tower does"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--pictures", type=int, default=None, help="so many at most")
    options = parser.parse_args()
    tower = load_tower(options.run / TOWER)
    backbone = tower_backbone(tower)
    corpora = [open_corpus(path) for path in options.corpora]
    there: list[tuple[Corpus, Image]] = [
        (corpus, image) for corpus in corpora for image in corpus if corpus.pictures and corpus.pictures.has(image)
    ]
    chosen = [there[place] for place in np.random.default_rng(0).permutation(len(there))][: options.pictures]

    def look(pair: tuple[Corpus, Image]) -> Tensor:
        return as_bytes(squash(read_picture(*pair, at_least=tower.side), tower.side))

    start, done, windows = time.perf_counter(), 0, None
    with atomic_write(options.folder / "rows.f16") as stream, ThreadPoolExecutor(1) as pool:
        parts = [chosen[first : first + BATCH] for first in range(0, len(chosen), BATCH)]
        ahead = pool.submit(lambda part: torch.stack([look(pair) for pair in part]), parts[0])
        for number in range(len(parts)):
            batch = ahead.result()
            if number + 1 < len(parts):
                ahead = pool.submit(lambda part: torch.stack([look(pair) for pair in part]), parts[number + 1])
            maps = backbone.maps(batch).values
            if windows is None:
                windows = cell_windows(*maps.shape[2:])
                check(tower, maps, windows, pooled_windows(tower, maps, windows))
            rows = F.normalize(pooled_windows(tower, maps, windows), dim=2)
            stream.write(rows.flatten(0, 1).numpy().astype("<f2").tobytes())
            done += len(batch)
            if number % 20 == 0:
                print(f"{done}/{len(chosen)} {done / (time.perf_counter() - start):.1f}/s", flush=True)
    assert windows is not None
    record: dict[str, Any] = {
        "rows": done * len(windows),
        "dim": tower.dim,
        "pictures": done,
        "regions_a_picture": len(windows),
        "corpora": [corpus.name for corpus in corpora],
        "weights_sha256": read_model(options.run).weights_sha256,
        "pictures_per_s": round(done / (time.perf_counter() - start), 2),
        "torch_threads": torch.get_num_threads(),
    }
    write_report(record, options.folder / "rows.json")


if __name__ == "__main__":
    main()
