"""Ranking, localization, caption metrics, and the results and tables made of them."""
