"""FrozenLake with token ids. A good output has four tokens for the tiles around the player, then a move, then EOT. An
output without a move wastes the turn. Each prompt extends the one before, so that the prefix cache can be used."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rose.config import TaskConfig
from rose.runtime.rollout import vocabulary as v

MAX_NEW_TOKENS = 8  #: Maximum tokens of a turn, with slack for a rambling policy.

STOP_TOKEN_IDS: tuple[int, ...] = (v.EOT,)

#: Row and column steps in the order of `vocabulary.MOVES`.
STEPS: tuple[tuple[int, int], ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))


class FrozenLake:
    """One trajectory. `reset`'s seed decides the board, `slip_seed` decides the slips. The verdict is ground truth."""

    verifier = "frozenlake-goal"
    verifier_version = "1"
    threshold = 1.0
    token_ids = True
    stop_token_ids = STOP_TOKEN_IDS

    def __init__(self, task: TaskConfig, slip_seed: int = 0) -> None:
        self._task, self._slip_seed = task, slip_seed
        self.terminated = False  #: The goal or a hole ended it.

    def reset(self, seed: int) -> list[int]:
        self.board: list[str] = generate_random_map(size=self._task.size, p=self._task.frozen_share, seed=seed)
        self._lake = FrozenLakeEnv(desc=self.board, is_slippery=self._task.slippery)
        self._state = int(self._lake.reset(seed=self._slip_seed)[0])
        tiles = [v.on_board(tile, row, col) for row, line in enumerate(self.board) for col, tile in enumerate(line)]
        return [v.BOS, *tiles, v.at(*self.position)]

    @property
    def position(self) -> tuple[int, int]:
        return divmod(self._state, self._task.size)

    def step(self, answer: Sequence[int]) -> tuple[list[int], float, bool, Mapping[str, Any]]:
        move = parse(answer)
        reply, reward = (v.MALFORMED, 0.0) if move is None else self._move(move)
        facts = {"answer_tokens": int(move is not None), "correct": reward == 1.0}
        return [reply, v.at(*self.position)], reward, self.terminated, facts

    def around(self) -> list[int]:
        """Return the tokens of the tiles around the player: left, below, right, above. A policy that sees the board
        correctly generates these four tokens before its move."""
        size, (row, col) = self._task.size, self.position
        places = [(row + down, col + right) for down, right in STEPS]
        return [v.TILES[self.board[r][c]] if 0 <= r < size and 0 <= c < size else v.WALL for r, c in places]

    def _move(self, move: int) -> tuple[int, float]:
        row, col = self.position
        meant = (row + STEPS[move][0], col + STEPS[move][1])
        state, reward, terminated, _, _ = self._lake.step(move)
        self._state, self.terminated = int(state), bool(terminated)
        if self.position == meant:
            return v.MOVED, float(reward)
        return v.BLOCKED if self.position == (row, col) else v.SLIPPED, float(reward)


def parse(output_ids: Sequence[int]) -> int | None:
    """Return Gymnasium's action if the output ends in a move and EOT, else None."""
    if len(output_ids) < 2 or output_ids[-1] != v.EOT or output_ids[-2] not in v.MOVES:
        return None
    return v.MOVES.index(output_ids[-2])


def seed_of(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def distances(board: Sequence[str]) -> dict[tuple[int, int], int]:
    """Return each tile's number of moves to the goal, without slips. Tiles without a way to the goal are left out."""
    size = len(board)
    goal = next((r, c) for r, c in itertools.product(range(size), repeat=2) if board[r][c] == "G")
    steps = {goal: 0}
    frontier = [goal]
    for row, col in frontier:
        for down, right in STEPS:
            tile = (row + down, col + right)
            if tile not in steps and 0 <= tile[0] < size and 0 <= tile[1] < size and board[tile[0]][tile[1]] != "H":
                steps[tile] = steps[row, col] + 1
                frontier.append(tile)
    return steps
