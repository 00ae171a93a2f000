"""The pages: one FastAPI application a server, plain HTML, CSS and ES modules, nothing from other hosts."""
