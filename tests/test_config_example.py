from __future__ import annotations

from rose import config
from rose.config import FleetConfig
from rose.config_example import example


def test_the_example_is_valid_and_explains_every_field():
    text = example()
    fleet = config.parse(text, "example")
    assert [device.pool for device in fleet.device] == ["serving", "rollout"]
    assert fleet.serving == FleetConfig.model_fields["serving"].get_default(call_default_factory=True)

    def check(model):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name} has no explanation"
            assert name in text
            if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
                check(field.annotation)

    check(FleetConfig)
    check(config.DeviceConfig)
