"""The papers' models, one file each: plain estimators and networks that know nothing of corpora or training runs."""
