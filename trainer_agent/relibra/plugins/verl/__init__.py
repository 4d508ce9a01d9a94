"""The plug-in for verl: `actor_rollout_ref.model.external_lib=relibra.integrations.verl`, and nothing is patched.

    registration    registers the engine, in the processes that have verl's engines
    configuration   the section `relibra` of verl's configuration
    points          the attributes of verl that the plug-in relies on, checked at start
    engine          verl's Megatron engine with an agent inside

Written against verl 0.9.1.
"""

from relibra.plugins.verl.registration import install

__all__ = ["install"]
