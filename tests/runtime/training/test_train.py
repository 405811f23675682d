import itertools
import re

import pytest

from rose import config
from rose.ledger.files import catalog, layout
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.runtime.rollout.conversation import Conversation
from rose.runtime.rollout.environments.environment_client import EnvironmentStartError
from rose.runtime.training import loop
from rose.runtime.training.train import train
from tests.client.fleet import Engine, Fetching, Recorded, fleet

FILE = """
cache = "{folder}"
device = [
    {{ id = "s", pool = "serving", device_class = "cpu-core", cores = [0], kv_bytes = 1 }},
    {{ id = "r", pool = "rollout", device_class = "cpu-core", cores = [1], kv_bytes = 1 }},
]
rollout = {{ model = "{model}" }}
task = {{ environment = "{environment}", options = {{ digits = 1 }}, turns_max = 3, recheck_share = 0.5 }}
training = {{ steps = 2, groups_per_step = 2, group_size = 6, minibatches = 1, staleness_max = 0 }}
"""


class Solver(Engine):
    def __init__(self, folder, conversation):
        super().__init__(fetch=Fetching(folder))
        self.conversation, self.mistakes = conversation, itertools.cycle([0, 0, 1])

    def tokens(self, body):
        text = self.conversation._tokenizer.decode(body["input_ids"]).rpartition("What is ")[2]
        expression = text.partition("?")[0]
        if result := re.search(r"<\|im_start\|>tool\n(-?\d+)", text):
            answer = f"Answer: {int(result[1]) + next(self.mistakes)}"
        else:
            answer = f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}</tool_call>'
        return [*self.conversation._ids(answer), *self.conversation.stop_token_ids]


def settings(folder, model, environment="arithmetic"):
    return config.parse(FILE.format(folder=folder, model=model, environment=environment), "the test's")


def test_a_chat_model_learns_with_a_tool_and_the_ledger_has_its_calls(tmp_path, chat_model):
    ledger = tmp_path / "ledger"
    layout.create(ledger)
    solver = Solver(tmp_path / "staging", Conversation(chat_model))
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(tmp_path / "state", solver, writer=writer, model=str(chat_model)) as service,
    ):
        train(service.url, None, tmp_path / "kept", print, print, fleet=settings(tmp_path, chat_model))
    assert Ledger(ledger).verify().ok, Ledger(ledger).verify().problems
    with catalog.connect(ledger) as connection:
        played = connection.execute("""
            SELECT task, outcome, turns, tool_calls, tool_ns > 0 AND tool_ns <= duration_ns, trajectory.reason,
                   verifier, verifier_version, threshold, accepted = (reward = 1), accepted, correct
            FROM trajectory JOIN verdict USING (trajectory_id)
        """).fetchall()
        trained = connection.execute("SELECT policy_version, tokens_trained > 0 FROM step ORDER BY step").fetchall()
    assert {row[:10] for row in played} == {
        ("arithmetic", "finished", 2, 1, True, None, "arithmetic-result", "1", 1.0, True)
    }
    assert len(played) == 24
    assert {row[10:] for row in played} == {(True, True), (True, None), (False, None)}
    assert trained == [(1, True), (2, True)]


@pytest.mark.parametrize(
    ("model", "environment", "error", "message"),
    [
        ("frozenlake-tiny", "arithmetic", config.ConfigError, r"rollout\.model 'frozenlake-tiny'"),
        ("owner/model", "arithmetics", EnvironmentStartError, r"task\.environment 'arithmetics'.*'arithmetic'"),
        ("owner/model", "arith metic", config.ConfigError, r"task\.environment: .* \(got 'arith metic'\)"),
    ],
)
def test_a_task_that_cannot_be_played_is_named_before_a_run_is_opened(tmp_path, model, environment, error, message):
    with fleet(tmp_path / "state", model=model) as service:
        with pytest.raises(error, match=message):
            train(service.url, None, tmp_path / "kept", print, print, fleet=settings(tmp_path, model, environment))
        assert not list(service.gateway.controller.runs)


class Guesser(Solver):
    def tokens(self, body):
        text = self.conversation._tokenizer.decode(body["input_ids"])
        guess = int(re.findall(r"Guess (\d+)", text)[-1]) + next(self.mistakes)
        return [*self.conversation._ids(str(guess)), *self.conversation.stop_token_ids]


def test_an_environment_that_hangs_costs_its_group_and_the_run_goes_on(tmp_path, chat_model, guessing, monkeypatch):
    monkeypatch.setattr(loop, "_AGAIN_S", 0.0)
    recorded, said, done = Recorded(), [], []
    guesser = Guesser(tmp_path / "staging", Conversation(chat_model))
    fleet_file = settings(tmp_path, chat_model, "guess")
    limits = {"options": {"hang_at": 1}, "call_s_max": 0.3, "turns_max": 1}
    fleet_file = fleet_file.model_copy(update={"task": fleet_file.task.model_copy(update=limits)})
    with fleet(tmp_path / "state", guesser, writer=recorded, model=str(chat_model)) as service:
        train(service.url, None, tmp_path / "kept", said.append, done.append, fleet=fleet_file)
    assert [(step.trajectories, step.groups) for step in done] == [(6, 1), (12, 2)]
    lost = [event for event in recorded.of("trajectory") if event.outcome == "lost"]
    assert {event.reason for event in lost} == {"guess.reset took longer than 0.3 s"}
    assert {event.group_id[-2:] for event in lost} == {"g1"}
    assert len(lost) == 18, "three tries of six"
    assert any("start again: guess.reset took longer than 0.3 s" in line for line in said)
