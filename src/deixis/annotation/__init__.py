"""The annotation workbench: the Flickr30k Entities workflow (Entities, section 2), its workers, its database."""
