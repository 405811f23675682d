"""Opening a run, and going on with one."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from rose.client.address import AWAY_S, RunAddress
from rose.client.control import call
from rose.client.errors import ClientError
from rose.client.patience import RESUME
from rose.client.publishing import make_folder
from rose.client.run import Run


def open_run(
    url: str,
    *,
    name: str,
    model: str,
    team: str | None = None,
    tags: Mapping[str, str] | None = None,
    task: str | None = None,
    staleness_max: int = 1,
    weight: float = 1.0,
    priority: int = 0,
    expires_s: float = 60.0,
    trainer_device: str | None = None,
    resume: str | None = None,
    token: str | None = None,
    folder: Path | str | None = None,
    host: str | None = None,
    away_s: float = AWAY_S,
) -> Run:
    """Open a run at the controller at `url`, or go on with the run `resume`; whoever had that one may no longer.

    `model` is the fleet's rollout model. `staleness_max` is how many versions behind the newest one a turn may be made
    by default. Runs of a higher `priority` are given engines first, those of one priority by `weight`. A run that is
    not heard of for `expires_s` expires, and can be resumed. `trainer_device` is the device of the fleet that the
    trainer sits on, if it does.

    `folder` is where published weights lie: one that is kept lets a resumed run go on with deltas. `host` is the
    address of this host at which they are fetched: the one by which it reaches the controller if left out.

    What is asked of a controller that is away is asked again for `away_s`. Raises ClientError for what is wrong or
    refused, ControllerAwayError, and RunEndedError for a run that cannot be resumed.
    """
    if not re.fullmatch(r"https?://[^/?#\s]+/?", url):
        raise ClientError(f"url {url!r} must be the controller's root, such as http://127.0.0.1:30100")
    for field, text in (("name", name), ("model", model), ("team", team), ("resume", resume)):
        if text is not None and not text.strip():
            raise ClientError(f"{field} {text!r} is empty: give a value, or leave it out")
    if staleness_max < 0:
        raise ClientError(f"staleness_max {staleness_max} must be 0 or more")
    for field, number in (("weight", weight), ("expires_s", expires_s), ("away_s", away_s)):
        if not 0 < number < math.inf:
            raise ClientError(f"{field} {number} must be above 0")
    wanted = {
        "name": name,
        "model": model,
        "team": team,
        "tags": dict(tags or {}),
        "task": task,
        "staleness_max": staleness_max,
        "weight": weight,
        "priority": priority,
        "expires_s": expires_s,
        "trainer_device": trainer_device,
        "resume": resume,
    }
    if folder is not None:
        # Before the run is open: nobody would close it.
        folder = Path(folder).expanduser()
        make_folder(folder)
    url = url.rstrip("/")
    message = {field: value for field, value in wanted.items() if value is not None}
    # Under a key, so that a run whose answer is lost is not opened twice.
    keyed = {**message, "key": uuid.uuid4().hex}
    then = "open the run" if resume is None else RESUME
    answer = call(url, "POST", "/runs", keyed, token=token, away_s=away_s, then=then)
    return Run(
        RunAddress(url=url, run_id=answer["run_id"], fence=answer["fence"], token=token, away_s=away_s),
        message,
        version=answer.get("version"),
        last_step=answer.get("step"),
        expires_s=answer.get("expires_s", expires_s),
        folder=folder,
        host=host,
    )
