"""The tokens of the built-in policy: a small vocabulary, so that engines run on token ids alone.

A conversation reads, in names (see `text`):

    BOS START F01 H02 F03 F10 ... GOAL    the board, cell by cell: kind, row, column
    AT00                                  where the player stands
    WALL F F WALL RIGHT EOT               one turn: tiles left, below, right and above, then the move
    MOVED AT01                            the environment's reply, and so on

A board token names its cell as well as its kind, so that a model learns to look a cell up in seconds of CPU time.
Ids are part of every saved checkpoint: append names, never reorder them."""

from collections.abc import Sequence

SIDE_MAX = 8

NAMES: tuple[str, ...] = (
    *("PAD", "BOS", "EOT"),
    *("START", "F", "H", "GOAL", "WALL"),
    *("LEFT", "DOWN", "RIGHT", "UP"),
    *("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"),
    *(f"{kind}{row}{col}" for kind in ("AT", "F", "H") for row in range(SIDE_MAX) for col in range(SIDE_MAX)),
)

SIZE = 256  #: Rows of the embedding table: the names, rounded up for tensor kernels.

_ID = {name: index for index, name in enumerate(NAMES)}

PAD, BOS, EOT, WALL = (_ID[name] for name in ("PAD", "BOS", "EOT", "WALL"))
MOVED, BLOCKED, SLIPPED, MALFORMED = (_ID[name] for name in ("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"))

TILES: dict[str, int] = {"S": _ID["START"], "F": _ID["F"], "H": _ID["H"], "G": _ID["GOAL"]}

#: Move tokens in Gymnasium's order: 0 left, 1 down, 2 right, 3 up.
MOVES: tuple[int, int, int, int] = (_ID["LEFT"], _ID["DOWN"], _ID["RIGHT"], _ID["UP"])


def at(row: int, col: int) -> int:
    return _ID[f"AT{row}{col}"]


def on_board(tile: str, row: int, col: int) -> int:
    """Return the token of tile `tile` ("S", "F", "H" or "G") at (row, col) when the board is shown."""
    return _ID[f"{tile}{row}{col}"] if tile in "FH" else TILES[tile]


def text(ids: Sequence[int]) -> str:
    """Return the names of `ids` with blanks between them; an id without a name is shown as `<id>`."""
    return " ".join(NAMES[i] if 0 <= i < len(NAMES) else f"<{i}>" for i in ids)
