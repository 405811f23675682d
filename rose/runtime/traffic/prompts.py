"""Prompts of a given length in tokens, made of common English words."""

import random

_TEXT = """
about after again all always animal answer any ask back bad because before begin best big black blue boat body book box
boy build call car change child city clear cold come cut dark day deep do dog door draw dry early earth east eat end
even eye face fact fall far farm fast field find fire first fish five fly food foot four free friend full game girl give
good green ground group half hand hard head heart help high hold home horse hot hour house idea keep kind king know land
large last leaf learn left less letter life light like line list live long look love low make man many map mark mile
"""

WORDS = tuple(_TEXT.split())  #: Each is one token in current models' vocabularies.


def prompt_text(seed: str, tokens: int) -> str:
    """Return `tokens` common words, drawn at random from `seed`, so that prompts share no prefix."""
    draw = random.Random(seed)  # noqa: S311 (traffic, not secrets)
    return " ".join(draw.choices(WORDS, k=tokens))
