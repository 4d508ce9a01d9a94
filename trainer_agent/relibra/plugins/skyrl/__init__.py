"""The plug-in for SkyRL: `trainer.override_entrypoint=relibra.integrations.skyrl`.

No file of SkyRL changes. The experiment and the workers of policy and reference are subclasses of SkyRL's.
`build_models` is wrapped in the trainer, `forward` and `forward_backward_mini_batch` in the worker's model, and
megatron's `get_forward_backward_func` in the module of that model during a pass.

    arguments     relibra's settings on SkyRL's command line
    points        the attributes of SkyRL that the plug-in relies on, checked at start
    entrypoint    SkyRL's own entry point, with workers of the policy and of the reference that balance
    batch         what a rank trains on, in the form of `relibra.steps`
    worker        SkyRL's Megatron policy worker with an agent inside
    reference     SkyRL's Megatron reference worker with an agent inside, as a job of its own

Written against SkyRL 0.4.0.
"""
