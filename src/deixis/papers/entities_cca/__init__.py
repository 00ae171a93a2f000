"""Normalized CCA and Flickr30k Entities (Plummer et al.)."""
