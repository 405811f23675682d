from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rose.runtime.engines import models
from rose.runtime.engines.cpu.torchvision_ops import define
from rose.runtime.engines.models import once


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said: list[str] = []
    folder = models.resolve(models.SMOLLM2, tmp_path_factory.mktemp("cache"), said.append)
    assert len(said) == 1
    return folder


@pytest.mark.long
def test_converted_model_answers_a_chat_question(checkpoint: Path) -> None:
    if not torch.cuda.is_available():
        define()
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is 7 + 5?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "12" in answer


def test_tokenizer_keeps_text_and_splits_digits(checkpoint: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = "Ünïcode  text,\nwith 1234 digits"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
    assert tokenizer.encode("<|im_end|>").ids == [2]


def test_second_call_finds_the_folder(checkpoint: Path) -> None:
    said: list[str] = []
    assert models.resolve(models.SMOLLM2, checkpoint.parent, said.append) == checkpoint
    assert said == []


def test_a_folder_is_taken_as_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path), tmp_path, print) == tmp_path.resolve()


_COMMIT = "c" * 40
_HUB = {
    "owner/model": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights", "model.gguf": b"x"},
    "owner/adapter": {"adapter_config.json": b"{}"},
}


class _Hub(BaseHTTPRequestHandler):
    """As much of Hugging Face's HTTP interface as a download needs."""

    def do_GET(self) -> None:
        path, _, file = self.path.partition(f"/resolve/{_COMMIT}/")
        if file:
            self._answer(_HUB[path.strip("/")][file])
        elif (name := "/".join(path.split("/")[3:5])) in _HUB:
            model = {"id": name, "sha": _COMMIT, "siblings": [{"rfilename": file} for file in _HUB[name]]}
            tree = [{"type": "file", "path": k, "size": len(v), "oid": _COMMIT} for k, v in _HUB[name].items()]
            self._answer(json.dumps(tree if "/tree/" in path else model).encode())
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", _COMMIT)
        self.send_header("ETag", f'"{len(body)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    yield server
    server.shutdown()
    server.server_close()


def _resolve_apart(name: str, home: Path, port: int) -> tuple[str, list[str]]:
    """(the folder or the error, what was said), of a process of its own: the client reads its environment once."""
    script = """
import json, sys
from pathlib import Path
from rose.runtime.engines import models
said = []
try:
    result = str(models.resolve(sys.argv[1], Path(sys.argv[2]), said.append))
except models.ModelError as error:
    result = f"error: {error}"
print(json.dumps([result, said]))
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{port}", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script, name, str(home)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result, said = json.loads(done.stdout)
    return result, said


def test_a_hugging_face_id_becomes_a_folder_and_stays_one_offline(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder, said = _resolve_apart("owner/model", tmp_path, hub.server_port)
    assert {path.name for path in Path(folder).iterdir()} == {"config.json", "model.safetensors"}
    assert (Path(folder) / "model.safetensors").read_bytes() == b"weights"
    assert len(said) == 1
    assert "owner/model" in said[0]
    hub.shutdown()
    hub.server_close()
    assert _resolve_apart("owner/model", tmp_path, hub.server_port)[0] == folder


@pytest.mark.parametrize(("name", "said"), [("owner/missing", "404"), ("owner/adapter", "has no config.json")])
def test_a_hugging_face_id_without_a_model_is_an_error(
    hub: ThreadingHTTPServer, tmp_path: Path, name: str, said: str
) -> None:
    error, _ = _resolve_apart(name, tmp_path, hub.server_port)
    assert error.startswith(f"error: model {name!r}")
    assert said in error
    assert "name a local checkpoint folder" in error


def test_a_hugging_face_id_out_of_reach_is_an_error_that_says_what_to_do(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    hub.shutdown()
    hub.server_close()
    error, _ = _resolve_apart("owner/model", tmp_path, hub.server_port)
    assert error.startswith("error: model 'owner/model' cannot be downloaded")
    assert "hf download owner/model" in error
    assert "name a local checkpoint folder" in error


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "a/b/c", ""])
def test_unknown_name_is_an_error_that_names_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(models.ModelError, match=r"frozenlake-tiny|config\.json"):
        models.resolve(name, tmp_path, print)


def test_folder_without_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(models.ModelError, match=r"config\.json"):
        models.resolve(str(tmp_path), tmp_path, print)


_SLOW_BUILD = """
import sys, time
from pathlib import Path
from rose.runtime.engines.models import once

def build(folder):
    (folder / "half").write_text("x")
    print("building", flush=True)
    time.sleep(60)

once(Path(sys.argv[1]), "thing", build)
"""


def test_killed_build_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_BUILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "thing").exists()
    folder = once(tmp_path, "thing", lambda fresh: (fresh / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.lock"}


def test_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        once(tmp_path, "thing", broken)
    assert {path.name for path in tmp_path.iterdir()} == {".thing.lock"}
    assert once(tmp_path, "thing", lambda fresh: (fresh / "whole").touch()).is_dir()


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from rose.runtime.engines.models import once

def build(folder):
    time.sleep(0.5)
    with (Path(sys.argv[1]) / "builds").open("a") as file:
        file.write("x")

once(Path(sys.argv[1]), "thing", build)
"""
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    deadline = time.monotonic() + 60
    assert [process.wait(deadline - time.monotonic()) for process in both] == [0, 0]
    assert (tmp_path / "builds").read_text() == "x"
