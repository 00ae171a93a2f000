"""The papers, one folder each: network, loss, task, model, recipes, tables, README. No folder imports another."""
