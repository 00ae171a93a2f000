"""Training of what other rooms run: chunker, entity types, coreference, proposer."""
