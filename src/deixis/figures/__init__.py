"""Galleries, alignment sites, maps and other pages of pictures."""
