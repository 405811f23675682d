"""The interface for trainers: a run on an existing fleet. It needs torch only to publish weights, never Ray or SGLang.

with rose.client.open_run("http://127.0.0.1:30100", name="grpo", model="frozenlake-tiny") as run:
    run.publish(dict(model.named_parameters()))
    generations = run.generate(prompts, {"max_new_tokens": 16}, group_id="g0", step=0)
    run.judge(generations, rewards, verifier="unit-tests")"""

from rose.client.address import (
    ClientError,
    ControllerAwayError,
    RunAddress,
    RunEndedError,
    RunExpiredError,
    RunTakenError,
)
from rose.client.generation import Attempt, Generation, GenerationLost, Part, judged, step_over
from rose.client.run import Run, open_run
from rose.client.turns import TurnClient
from rose.events import Step, Trajectory, Verdict

__all__ = [
    "Attempt",
    "ClientError",
    "ControllerAwayError",
    "Generation",
    "GenerationLost",
    "Part",
    "Run",
    "RunAddress",
    "RunEndedError",
    "RunExpiredError",
    "RunTakenError",
    "Step",
    "Trajectory",
    "TurnClient",
    "Verdict",
    "judged",
    "open_run",
    "step_over",
]
