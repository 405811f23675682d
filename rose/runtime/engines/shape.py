"""What a checkpoint's configuration says of its shape, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_bytes_per_token(checkpoint: Path | str, dtype: str | None = None) -> int:
    """KV-cache bytes of one token: 2 (K and V) * layers * kv heads * head size * element size.

    `dtype` is what the engine computes in, if that is not the checkpoint's own.

    Raises ValueError naming the file if the checkpoint is not in a local folder or lacks a field.
    """
    path = Path(checkpoint) / "config.json"
    try:
        config = json.loads(path.read_text())
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        layers = int(config["num_hidden_layers"])
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read the model's shape from {path}: {error!r}. Name a local checkpoint folder.")
    element = _DTYPE_BYTES.get(str(dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"), 2)
    return 2 * layers * kv_heads * head_dim * element
