from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rose.runtime.engines import models
from rose.runtime.engines.cache import once
from rose.runtime.engines.cpu.torchvision_ops import define


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said: list[str] = []
    folder = models.resolve(models.SMOLLM2, tmp_path_factory.mktemp("cache"), said.append)
    assert isinstance(folder, Path)
    assert len(said) == 1
    return folder


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


def test_folder_and_hub_id_are_taken_as_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path), tmp_path, print) == tmp_path.resolve()
    assert models.resolve("Qwen/Qwen3-8B", tmp_path, print) == "Qwen/Qwen3-8B"


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
from rose.runtime.engines.cache import once

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
from rose.runtime.engines.cache import once

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
