"""Losses, samplers, recipes, trainer, checkpoints."""
