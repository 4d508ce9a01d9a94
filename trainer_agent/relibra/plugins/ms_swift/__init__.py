"""The plug-in for ms-swift: `--external_plugins $(python -m relibra.integrations.ms_swift)`.

No file of ms-swift changes. `swift.megatron.trainers.MegatronGRPOTrainer` is replaced by a subclass of itself. In it,
`export_weights` and `save_weights` of the bridge are wrapped.

    external        the file that ms-swift imports, in a folder of its own
    installation    makes ms-swift's pipeline create the trainer of this plug-in
    points          the attributes of ms-swift that the plug-in relies on, checked at start
    batch           what a rank trains on, in the form of `relibra.steps`
    rollout         reports samples where they finish, in a trainer that has its own engine
    trainer         ms-swift's Megatron trainer of GRPO with an agent inside

Written against ms-swift 4.6.0 with mcore-bridge 1.6.5.
"""

from relibra.plugins.ms_swift.installation import install

__all__ = ["install"]
