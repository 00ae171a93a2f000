"""The embedded corpus, `scenes`: drawn by the package itself from a seed, annotated as Flickr30k Entities is.

Every scene has a setting, one event and bystanders; five captions describe it, with phrases, coreference chains,
types and the exact boxes of what was drawn. Two thirds of the scenes have siblings in their split that differ in one
factor (roles exchanged, another count, colours exchanged or changed), and `order_swaps` and `count_swaps` give
captions their false twins, so that word order, counting and binding can be measured. The split `unseen` holds scenes
with pairs of words (`HELD_OUT`) that never meet in the other splits.
"""

from deixis.corpus.scenes.build import Swap, count_swaps, order_swaps, scenes_corpus, scenes_of
from deixis.corpus.scenes.facts import HELD_OUT

__all__ = ["HELD_OUT", "Swap", "count_swaps", "order_swaps", "scenes_corpus", "scenes_of"]
