"""What a checkpoint's files say of its shape and size, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_INDEX = "model.safetensors.index.json"


def kv_bytes_per_token(checkpoint: Path | str, dtype: str | None = None) -> int:
    """KV-cache bytes of one token: 2 (K and V) * layers * kv heads * head size * element size.

    `dtype` is what the engine computes in, if that is not the checkpoint's own.

    Raises ValueError naming the file if the checkpoint is not in a local folder or lacks a field.
    """
    path = Path(checkpoint) / "config.json"
    config = _config(path)
    try:
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        layers = int(config["num_hidden_layers"])
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error)
    return 2 * layers * kv_heads * head_dim * _element_bytes(config, dtype)


def weights_bytes(checkpoint: Path | str) -> int:
    """Bytes of the weights that an engine loads: the size of the safetensors files, or, where there are none, what a
    dense Llama of the configuration's shape has in its dtype.

    Raises ValueError naming the file if the checkpoint is not in a local folder or lacks a field.
    """
    folder = Path(checkpoint)
    # The index names what is loaded; a folder may hold the same weights a second time, in one file.
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
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
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
