"""Models that were not trained by this process: ONNX bundles, open_clip."""
