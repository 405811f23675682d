from __future__ import annotations

from rose.runtime.rollout import vocabulary as v


def test_names_are_distinct_and_fit() -> None:
    assert len(set(v.NAMES)) == len(v.NAMES) <= v.SIZE


def test_ids_of_saved_checkpoints_stay() -> None:
    assert (v.PAD, v.BOS, v.EOT, v.MOVES) == (0, 1, 2, (8, 9, 10, 11))
    assert (v.at(0, 0), v.on_board("F", 0, 0), v.on_board("H", 7, 7)) == (16, 80, 207)


def test_text_names_every_id() -> None:
    assert v.text([v.BOS, v.at(3, 4), 255]) == "BOS AT34 <255>"
