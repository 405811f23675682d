"""The tokens of the built-in policy: a small vocabulary of whole words. An example:

    BOS START F01 H02 F03 F10 ... GOAL    the board, cell by cell: kind, row, column
    AT00                                  where the player stands
    WALL F F WALL RIGHT EOT               one turn: tiles left, below, right and above, then the move
    MOVED AT01                            the environment's reply, and so on

Ids are part of every saved checkpoint, so append names and never reorder them."""

import json
from pathlib import Path

SIDE_MAX = 8

NAMES: tuple[str, ...] = (
    *("PAD", "BOS", "EOT"),
    *("START", "F", "H", "GOAL", "WALL"),
    *("LEFT", "DOWN", "RIGHT", "UP"),
    *("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"),
    *(f"{kind}{row}{col}" for kind in ("AT", "F", "H") for row in range(SIDE_MAX) for col in range(SIDE_MAX)),
)

SIZE = 256  #: Rows of the embedding table, rounded up for tensor kernels.

_ID = {name: index for index, name in enumerate(NAMES)}

PAD, BOS, EOT, WALL = (_ID[name] for name in ("PAD", "BOS", "EOT", "WALL"))
MOVED, BLOCKED, SLIPPED, MALFORMED = (_ID[name] for name in ("MOVED", "BLOCKED", "SLIPPED", "MALFORMED"))

TILES: dict[str, int] = {"S": _ID["START"], "F": _ID["F"], "H": _ID["H"], "G": _ID["GOAL"]}

#: Move tokens in Gymnasium's order.
MOVES: tuple[int, int, int, int] = (_ID["LEFT"], _ID["DOWN"], _ID["RIGHT"], _ID["UP"])


def at(row: int, col: int) -> int:
    return _ID[f"AT{row}{col}"]


def on_board(tile: str, row: int, col: int) -> int:
    return _ID[f"{tile}{row}{col}"] if tile in "FH" else TILES[tile]


def save_tokenizer(folder: Path) -> None:
    """Write a Hugging Face tokenizer for `NAMES`. Each token's text begins with a blank. Unknown words become PAD."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = {f" {name}": index for name, index in _ID.items()}
    pad, bos, eot = (f" {NAMES[index]}" for index in (PAD, BOS, EOT))
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=pad))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" \S+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"bos_token": bos, "eos_token": eot, "pad_token": pad, "unk_token": pad}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
