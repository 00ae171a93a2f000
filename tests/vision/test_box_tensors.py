"""Suppression of a batch keeps, row for row, what suppression of one picture after the other keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deixis.corpus.boxes import suppress
from deixis.vision.box_tensors import suppress_batch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.6, 1.0])
def test_it_is_suppression_of_each_picture(device: str, count: int, overlap: float) -> None:
    generator = np.random.default_rng(count)
    for boxes_each in (1, 5, 60, 400):
        low = generator.uniform(0, 0.6, (6, boxes_each, 2))
        boxes = np.concatenate([low, low + generator.uniform(0, 0.4, low.shape)], 2).astype(np.float32)
        # Some equal, some turned inside out or without area; and many equal scores.
        boxes[1] = boxes[1, :1]
        boxes[2, ::3, 2:] = boxes[2, ::3, :2]
        boxes[3, ::4] = boxes[3, ::4][:, [2, 3, 0, 1]]
        scores = generator.uniform(0, 1, (6, boxes_each)).astype(np.float32)
        scores[4:] = np.round(scores[4:], 1)
        rows, counts = suppress_batch(
            torch.from_numpy(boxes).to(device), torch.from_numpy(scores).to(device), overlap, count
        )
        for own, score, row, kept in zip(boxes, scores, rows.cpu().numpy(), counts.tolist(), strict=True):
            np.testing.assert_array_equal(row[:kept], suppress(own, score, overlap, count))
