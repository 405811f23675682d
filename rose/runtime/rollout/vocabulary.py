"""The tokens of the built-in policy: its own small vocabulary, so that engines run on token ids alone.

A conversation reads, in names:

    BOS ROW0 S F H F ROW1 F F F F ...     the board, row by row
    AT ROW0 COL0                          where the player stands
    L:WALL D:F R:F U:WALL  RIGHT EOT      one turn of the policy: the four tiles around it, then its move
    MOVED AT ROW0 COL1                    the environment's reply, and so on

Ids are part of every saved checkpoint: append names, never reorder them.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Rows and columns that have a token; the largest lake that can be written.
SIDE_MAX = 8

NAMES: tuple[str, ...] = (
    *("PAD", "BOS", "EOT", "AT"),
    *("S", "F", "H", "G", "WALL"),
    *("LEFT", "DOWN", "RIGHT", "UP"),
    *("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"),
    *(f"ROW{i}" for i in range(SIDE_MAX)),
    *(f"COL{i}" for i in range(SIDE_MAX)),
)

#: Rows of the embedding table: the names, rounded up to what tensor kernels like; the rest is never emitted on purpose.
SIZE = 64

_ID = {name: index for index, name in enumerate(NAMES)}

PAD, BOS, EOT, AT = (_ID[name] for name in ("PAD", "BOS", "EOT", "AT"))
WALL = _ID["WALL"]
MOVED, BLOCKED, SLIPPED, MALFORMED = (_ID[name] for name in ("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"))

#: Tile letter of the board to token.
TILES: dict[str, int] = {letter: _ID[letter] for letter in "SFHG"}

#: Move tokens in the order of Gymnasium's actions: 0 left, 1 down, 2 right, 3 up.
MOVES: tuple[int, int, int, int] = (_ID["LEFT"], _ID["DOWN"], _ID["RIGHT"], _ID["UP"])

ROWS: tuple[int, ...] = tuple(_ID[f"ROW{i}"] for i in range(SIDE_MAX))
COLS: tuple[int, ...] = tuple(_ID[f"COL{i}"] for i in range(SIDE_MAX))


def text(ids: Sequence[int]) -> str:
    """The names of `ids` with blanks between them; an id without a name is shown as `<id>`."""
    return " ".join(NAMES[i] if 0 <= i < len(NAMES) else f"<{i}>" for i in ids)
