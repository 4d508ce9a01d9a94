"""The plug-in for NeMo-RL: `python -m relibra.plugins.nemo_rl SCRIPT ...`.

No file of NeMo-RL changes. `resolve_policy_worker_cls` is wrapped in the driver, and names a subclass of NeMo-RL's
worker. `get_microbatch_iterator`, `megatron_forward_backward` and megatron's `get_forward_backward_func` are wrapped in
the modules of the worker during a pass.

    __main__        runs a script of NeMo-RL with the plug-in installed
    launch          makes the driver's policies start the worker of this plug-in
    points          the attributes of NeMo-RL that the plug-in relies on, checked at start
    refusals        the settings of NeMo-RL that the plug-in refuses
    rollout         reports the samples of the driver's rollouts where they finish
    batch           what a rank trains on, in the form of `relibra.steps`
    worker          NeMo-RL's Megatron policy worker with an agent inside

Written against NVIDIA-NeMo/RL 0.7.0 and 7ea279a.
"""
