"""Simulated workers that replay an annotated corpus through the workbench, and the evaluation of the result."""
