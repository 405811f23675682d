"""Prompts of a given length in tokens, made of common English words."""

import random

_TEXT = """
about after again against air all along also always animal another answer any around ask away back because been
before begin being below best better between big black blue boat body book both box boy build built call came car
change children city clear close cold color come common could country course cut dark day deep different direct do
does dog door down draw drive dry during each early earth east eat end enough even ever every example eye face fact
fall family far farm fast father feel feet few field final find fine fire first fish five fly follow food foot force
form found four free friend front full game get girl give gold good got govern great green ground group grow had
half hand hard has have head heat help her here high him his hold home horse hot hour house how hundred idea inch
interest just keep kind king know land language large last late lead learn leave left less let letter life light
like line list listen little live long look love low machine made main make man many map mark may mean men might
mile mind miss money moon more most mother move much music must name near need never new next night north note
nothing now number
"""

WORDS = tuple(_TEXT.split())  #: Each is one token in current models' vocabularies.


def prompt_text(seed: str, tokens: int) -> str:
    """Return `tokens` common words in an order from `seed`, so that prompts share no prefix."""
    draw = random.Random(seed)  # noqa: S311 (traffic, not secrets)
    return " ".join(draw.choices(WORDS, k=tokens))
