import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rose.runtime.models import models
from rose.runtime.models.models import kv_bytes_per_token, once, weights_bytes
from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.platform.cpu import define_torchvision
from tests.runtime.loads import LLAMA_8B


@pytest.mark.long
def test_converted_model_answers_a_chat_question(tmp_path: Path) -> None:
    checkpoint = models.resolve(models.SMOLLM2, tmp_path, print)
    if not torch.cuda.is_available():
        define_torchvision()
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is 7 + 5?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "12" in answer
    text = "Ünïcode  text,\nwith 1234 digits"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert tokenizer("<|im_end|>")["input_ids"] == [2]


_COMMIT = "c" * 40
_HUB = {
    "owner/model": {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights", "model.gguf": b"x"},
    "owner/adapter": {"adapter_config.json": b"{}"},
}


class _Hub(BaseHTTPRequestHandler):
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


def test_what_becomes_of_a_hugging_face_id(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """In a process of its own: the client reads its environment once."""
    script = """
import json, sys
from pathlib import Path
from rose.runtime.models import models

def resolve(name):
    said = []
    try:
        return str(models.resolve(name, Path(sys.argv[1]), said.append)), said
    except models.ModelError as error:
        return f"error: {error}", said

for name in sys.stdin:
    print(json.dumps(resolve(name.strip())), flush=True)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    environment |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def resolve(name: str) -> tuple[str, list[str]]:
            process.stdin.write(f"{name}\n")
            result, said = json.loads(process.stdout.readline())
            return result, said

        folder, (said,) = resolve("owner/model")
        assert {path.name for path in Path(folder).iterdir()} == {"config.json", "model.safetensors"}
        assert (Path(folder) / "model.safetensors").read_bytes() == b"weights"
        assert "owner/model" in said
        for name, reason in (("owner/missing", "404"), ("owner/adapter", "has no config.json")):
            error, _ = resolve(name)
            assert error.startswith(f"error: model {name!r}")
            assert reason in error
        hub.shutdown()
        hub.server_close()
        assert resolve("owner/model")[0] == folder, "it needs no network once it is there"
        error, _ = resolve("owner/other")
        assert error.startswith("error: model 'owner/other' cannot be downloaded")
        assert "hf download owner/other" in error


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "a/b/c", ""])
def test_unknown_name_is_an_error_that_names_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(models.ModelError, match=r"frozenlake-tiny|config\.json"):
        models.resolve(name, tmp_path, print)


def test_killed_build_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        once(tmp_path, "thing", half)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "thing").exists()
    folder = once(tmp_path, "thing", lambda fresh: (fresh / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.lock"}


def test_of_several_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    builds = []

    def build(folder: Path) -> None:
        time.sleep(0.1)
        builds.append(folder)

    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: once(tmp_path, "thing", build), range(3)))
    assert (folders, len(builds)) == ({tmp_path / "thing"}, 1)


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_shape_of_a_known_model(tmp_path):
    folder = write(tmp_path, LLAMA_8B)
    assert kv_bytes_per_token(folder) == 131072
    assert kv_bytes_per_token(folder, "float32") == 2 * 131072
    assert weights_bytes(folder) == pytest.approx(2 * 8_030_261_248, rel=1e-4)
    write(folder, {**LLAMA_8B, "tie_word_embeddings": True})
    assert weights_bytes(folder) == pytest.approx(2 * (8_030_261_248 - 128256 * 4096), rel=1e-4)


def test_weights_are_as_large_as_their_files(tmp_path):
    shape = PolicyShape(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16)
    Policy(shape).save(tmp_path)
    count = sum(parameter.numel() for parameter in Policy(shape).parameters())
    assert weights_bytes(tmp_path) == pytest.approx(2 * count, rel=0.05)


def test_weights_that_lie_there_twice_are_counted_once(tmp_path):
    write(tmp_path, LLAMA_8B)
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        save_file({"a": torch.zeros(1000)}, tmp_path / name)
    size = (tmp_path / "model-1.safetensors").stat().st_size
    assert weights_bytes(tmp_path) == 3 * size
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_bytes(tmp_path) == 2 * size


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json.*Name a local checkpoint folder"):
        kv_bytes_per_token(tmp_path)
    with pytest.raises(ValueError, match="num_attention_heads"):
        kv_bytes_per_token(write(tmp_path, {}))
    with pytest.raises(ValueError, match="hidden_size"):
        weights_bytes(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        weights_bytes(tmp_path)


_READ_ONLY = """
mount -n --bind "$1" "$1" && mount -n -o remount,bind,ro "$1"
exec "$2" -c 'import sys; from pathlib import Path
from rose.errors import UserError
from rose.runtime.models.models import once
def build(folder): (folder / "file").write_text("built")
for name in ("made", "other"):
    try: print(once(Path(sys.argv[1]), name, build).name)
    except UserError as error: print(error)' "$1"
"""


def _build(folder: Path) -> None:
    (folder / "file").write_text("built")


def test_a_cache_that_hosts_share_need_not_be_written_to(tmp_path: Path) -> None:
    once(tmp_path, "made", _build)
    run = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", _READ_ONLY, "sh", str(tmp_path), sys.executable],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "made" not in run.stdout and run.returncode:
        pytest.skip(f"this machine has no mount namespaces for its users: {run.stderr.strip()[-200:]}")
    made, refused = run.stdout.splitlines()
    assert made == "made"
    assert refused.startswith(f"cache {tmp_path} has no other and cannot be written (Read-only file system)")
