import pytest
import torch
from safetensors.torch import load_file

from rose import client
from rose.runtime.platform.cpu import define_torchvision
from rose.transfer.package.manifest import plan
from tests.client.fleet import MODEL, fleet
from tests.transfer.training import same, stage

pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate: pip install accelerate")


@pytest.fixture(autouse=True)
def torchvision():
    if not torch.cuda.is_available():
        define_torchvision()


@pytest.fixture
def base(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def train(model, callback, folder, steps):
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 32, (steps, 8))]
    arguments = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=1, report_to=[], save_strategy="no", use_cpu=True
    )
    arguments.learning_rate = 0.01
    Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()


def newest(run, folder):
    from rose.transfer.apply.apply import prepare
    from rose.transfer.codec.bits import torch_dtype

    store = run._origin._store
    staged = stage(store, plan(store.packages(), run.version, None), folder)
    tensors = staged.manifests[-1].tensors
    held = {info.name: torch.zeros(info.shape, dtype=torch_dtype(info.dtype)) for info in tensors}
    prepare(staged, held).commit()
    return held


def test_it_publishes_at_the_start_every_n_steps_and_at_the_end(tmp_path, base):
    from transformers import AutoModelForCausalLM

    from rose.client.hf import PublishCallback

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with fleet(tmp_path / "state") as service:
        with client.open_run(service.url, name="n", model=MODEL, checkpoint=base) as run:
            with pytest.raises(client.ClientError, match="every is 0"):
                PublishCallback(run, every=0)
            train(model, PublishCallback(run, every=2), tmp_path / "out", 5)
            assert run.version == 3  # At the start, after steps 2 and 4, and at the end.
            names = load_file(base / "model.safetensors")
            assert "lm_head.weight" not in names
            assert same(newest(run, tmp_path / "staged"), {name: model.state_dict()[name].bfloat16() for name in names})


def test_a_lora_model_is_published_merged(tmp_path, base):
    peft = pytest.importorskip("peft", reason="needs PEFT: pip install peft")
    from transformers import AutoModelForCausalLM

    from rose.client.hf import PublishCallback

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with fleet(tmp_path / "state") as service:
        with client.open_run(service.url, name="n", model=MODEL, checkpoint=base) as run:
            train(model, PublishCallback(run), tmp_path / "out", 2)
            assert run.version == 2
            assert run.published.merged == ("model.layers.0.self_attn.q_proj.weight",)
            names = load_file(base / "model.safetensors")
            published = newest(run, tmp_path / "staged")
            merged = model.merge_and_unload().bfloat16().state_dict()
            assert not torch.equal(published[run.published.merged[0]], names[run.published.merged[0]])
            assert same(published, {name: merged[name] for name in names})
