import json
import re
import shlex
from pathlib import Path

from tests.runtime.scheduling.stand_ins import open_run, post, publish

TRAINING = (Path(__file__).parents[4] / "docs" / "training.md").read_text(encoding="utf-8")
CALLS = [shlex.split(line) for line in re.findall(r"^curl .*$", TRAINING, re.MULTILINE)]


async def test_every_call_of_the_controller_in_the_document_is_answered(speaking):
    async with speaking() as (session, _, _, _):
        run = await open_run(session, model="words")
        await publish(session, run)
        for words in CALLS:
            url = next(word for word in words if word.startswith("http"))
            path = re.sub("/runs/[^/]+", f"/runs/{run['run_id']}", "/" + url.split("/", 3)[3])
            body = json.loads(words[words.index("-d") + 1])
            status, made = await post(session, path, body | ({"model": "words"} if "model" in body else {}))
            assert (status, "error" in made) == (200, False), path
    assert len(CALLS) == 3
