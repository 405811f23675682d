"""FrozenLake played in turns by a language model: a pure state machine between token ids and Gymnasium's environment.
Each prompt extends the last one, so a prefix cache holds all but the last reply. The policy writes the four tiles
around it (its reasoning), one move (its answer), then EOT. Output without a move before EOT costs the turn."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from rose.config import TaskConfig
from rose.runtime.rollout import vocabulary as v

MAX_NEW_TOKENS = 8  #: Most tokens of a turn; a little slack, so that a policy may ramble and recover.

STOP_TOKEN_IDS: tuple[int, ...] = (v.EOT,)

NOT_GENERATED = -1  #: Version of a token that no policy generated.

#: Row and column steps in the order of `vocabulary.MOVES`.
STEPS: tuple[tuple[int, int], ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass
class Episode:
    """One trajectory in progress. `seed` gives the board, which episodes of a group share; `slip_seed` gives the slips
    on ice. `ids`, `mask`, `logprobs` and `versions` have one length; tokens of the environment have mask False, logprob
    0.0 and version `NOT_GENERATED`."""

    task: TaskConfig
    seed: int
    slip_seed: int = 0
    ids: list[int] = field(default_factory=list, init=False)
    mask: list[bool] = field(default_factory=list, init=False)
    logprobs: list[float] = field(default_factory=list, init=False)
    versions: list[int] = field(default_factory=list, init=False)
    turns: int = field(default=0, init=False)
    answer_tokens: int = field(default=0, init=False)
    terminated: bool = field(default=False, init=False)  #: The goal or a hole ended it. False at the turn limit.
    reward: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.board: list[str] = generate_random_map(size=self.task.size, p=self.task.frozen_share, seed=self.seed)
        self._lake = FrozenLakeEnv(desc=self.board, is_slippery=self.task.slippery)
        self._state = int(self._lake.reset(seed=self.slip_seed)[0])
        self._read([v.BOS])
        for row, tiles in enumerate(self.board):
            self._read([v.on_board(tile, row, col) for col, tile in enumerate(tiles)])
        self._read([v.at(*self.position)])

    @property
    def position(self) -> tuple[int, int]:
        return divmod(self._state, self.task.size)

    @property
    def done(self) -> bool:
        return self.terminated or self.turns >= self.task.turns_max

    def prompt_ids(self) -> list[int]:
        """Return the conversation so far, the next turn's prompt. Raises ValueError when the episode is done."""
        if self.done:
            raise ValueError(f"episode is done after {self.turns} turns: there is no next prompt")
        return list(self.ids)

    def apply(self, output_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> int | None:
        """Append one turn's output, move the player and append the lake's reply; return Gymnasium's action, or None.
        `logprobs` (of the sampling distribution) and `versions` are per output token. Raises ValueError when done or
        for unequal lengths."""
        if self.done:
            raise ValueError(f"episode is done after {self.turns} turns: it takes no more output")
        if not len(output_ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"{len(output_ids)} output ids, {len(logprobs)} logprobs, {len(versions)} versions: they must match"
            )
        self.ids += output_ids
        self.mask += [True] * len(output_ids)
        self.logprobs += logprobs
        self.versions += versions
        self.turns += 1
        move = parse(output_ids)
        reply = v.MALFORMED if move is None else self._move(move)
        self.answer_tokens += move is not None
        if not self.done:
            self._read([reply, v.at(*self.position)])
        return move

    def around(self) -> list[int]:
        """Return tokens of the tiles left, below, right and above: the true reasoning of this turn."""
        size, (row, col) = self.task.size, self.position
        places = [(row + down, col + right) for down, right in STEPS]
        return [v.TILES[self.board[r][c]] if 0 <= r < size and 0 <= c < size else v.WALL for r, c in places]

    def _move(self, move: int) -> int:
        row, col = self.position
        meant = (row + STEPS[move][0], col + STEPS[move][1])
        state, reward, terminated, _, _ = self._lake.step(move)
        self._state, self.terminated, self.reward = int(state), bool(terminated), float(reward)
        if self.position == meant:
            return v.MOVED
        return v.BLOCKED if self.position == (row, col) else v.SLIPPED

    def _read(self, ids: list[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [NOT_GENERATED] * len(ids)


def parse(output_ids: Sequence[int]) -> int | None:
    """Return Gymnasium's action for an output that ends in a move and EOT, else None."""
    if len(output_ids) < 2 or output_ids[-1] != v.EOT or output_ids[-2] not in v.MOVES:
        return None
    return v.MOVES.index(output_ids[-2])


def sampling_params(temperature: float) -> dict[str, object]:
    """Return SGLang's parameters. With top_p or top_k, logprobs would be of another distribution than the trainer's."""
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": MAX_NEW_TOKENS,
        "stop_token_ids": list(STOP_TOKEN_IDS),
    }


def seed_of(*parts: int) -> int:
    """Return one 32-bit seed of several non-negative numbers; streams do not overlap."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def distances(board: Sequence[str]) -> dict[tuple[int, int], int]:
    """Return moves to the goal from each tile that reaches it without a hole, by breadth-first search on dry ice."""
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
