"""From a model's configuration to what a backend acts on."""

from __future__ import annotations

from relight.backends.base import Declared
from relight.wire.modelconfig import InstanceGroup, ModelConfig


def of_config(config: ModelConfig) -> Declared:
    """Tensors as the model's file has them. Of several instance groups the first says where: all share one session."""
    group = config.instance_groups[0] if config.instance_groups else InstanceGroup()
    return Declared(
        inputs=config.native_specs(config.inputs),
        outputs=config.native_specs(config.outputs),
        kind=group.kind,
        gpus=group.gpus,
        accelerators=config.accelerators,
        parameters=config.parameters,
        instances=config.instances,
    )
