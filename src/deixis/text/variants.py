"""British spellings and words, and other names of everyday things, with what captions mostly say instead.

People search in the English that they speak; models have mostly read American captions. Words with several meanings
("jumper", "trainer", "chips") are left out.
"""

from __future__ import annotations

from deixis.text.plurals import plural, singular

_SPELLINGS = """
aeroplane airplane, ageing aging, armour armor, axe ax, barbeque barbecue, bbq barbecue, behaviour behavior, catalogue
catalog, centre center, cheque check, colour color, coloured colored, colourful colorful, cosy cozy, doughnut donut,
draught draft, drier dryer, favourite favorite, fibre fiber, flavour flavor, grey gray, harbour harbor, icecream ice
cream, jewellery jewelry, kerb curb, labour labor, manoeuvre maneuver, metre meter, mould mold, moustache mustache,
multicoloured multicolored, neighbour neighbor, omelette omelet, parlour parlor, plough plow, programme program,
pyjamas pajamas, racquet racket, rollerskate roller skate, sceptre scepter, storey story, sulphur sulfur, theatre
theater, traveller traveler, travelling traveling, tshirt t-shirt, tyre tire, vapour vapor, whisky whiskey, yoghurt
yogurt
"""
_NAMES = """
dungarees overalls, dustbin trash can, eyeglasses glasses, lorry truck, nappy diaper, petrol gas,
pram stroller, pushchair stroller, rubbish trash, seashore beach, settee couch, spectacles glasses, telly tv, trousers
pants, windscreen windshield
"""
#: By the singular.
_VARIANTS = {
    word: tuple(other)
    for word, *other in (pair.split() for pair in f"{_SPELLINGS},{_NAMES}".split(",") if pair.split())
}


def variant(word: str) -> tuple[str, ...]:
    """Other words for a word, in its number; none for most words.

    >>> variant("tyres"), variant("dustbins"), variant("drier"), variant("dog")
    (('tires',), ('trash', 'cans'), ('dryer',), ())
    """
    one = word if word in _VARIANTS else singular(word)
    words = _VARIANTS.get(one, ())
    return (*words[:-1], plural(words[-1])) if words and one != word else words
