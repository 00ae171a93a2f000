"""The annotation workbench: the Flickr30k Entities workflow (paper 0, section 2), its workers, its database."""
