"""The plug-in for SkyRL: `trainer.override_entrypoint=relibra.integrations.skyrl`, and nothing is patched.

    arguments     relibra's settings on SkyRL's command line
    points        the attributes of SkyRL that the plug-in relies on, checked at start
    entrypoint    SkyRL's own entry point, with a policy worker that balances
    worker        SkyRL's Megatron policy worker with an agent inside

Written against SkyRL 0.4.0.
"""
