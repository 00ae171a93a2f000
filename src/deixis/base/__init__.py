"""deixis-base: its networks, their training and fine-tuning, the bundle that ships."""
