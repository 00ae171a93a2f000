"""Simulated workers that replay an annotated corpus through the workbench, and what came out of it."""
