"""Lets a trainer open a run on an existing fleet. Publishing weights needs torch. Nothing here needs Ray or SGLang.

with rose.client.open_run("http://127.0.0.1:30100", name="grpo", model="frozenlake-tiny") as run:
    run.publish(dict(model.named_parameters()))
    generations = run.generate(prompts, {"max_new_tokens": 16}, group_id="g0", step=0)
    run.judge(generations, rewards, verifier="unit-tests")"""

from rose.client.address import ClientError as ClientError
from rose.client.address import ControllerAwayError as ControllerAwayError
from rose.client.address import RunAddress as RunAddress
from rose.client.address import RunEndedError as RunEndedError
from rose.client.address import RunExpiredError as RunExpiredError
from rose.client.address import RunTakenError as RunTakenError
from rose.client.generation import Attempt as Attempt
from rose.client.generation import Generation as Generation
from rose.client.generation import GenerationLost as GenerationLost
from rose.client.generation import Part as Part
from rose.client.generation import judged as judged
from rose.client.generation import step_over as step_over
from rose.client.run import Run as Run
from rose.client.run import open_run as open_run
from rose.client.turns import TurnClient as TurnClient
from rose.events import Step as Step
from rose.events import Trajectory as Trajectory
from rose.events import Verdict as Verdict
