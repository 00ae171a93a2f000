"""`make fuzz`: damaged and hostile files for everything that reads files. See `__main__`."""
