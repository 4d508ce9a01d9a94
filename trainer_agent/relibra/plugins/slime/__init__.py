"""The plug-in for slime and its fork miles: `--custom-megatron-init-path relibra.integrations.slime.init`, no patches.

    framework      what the plug-in relies on in slime and in miles, and what it refuses, by name
    training       the training process: an attached agent, planned passes, right names of weights
    rollout_schedule, rollout_packing
                   which micro-batch and rank each sample gets, chosen in the rollout manager
    installation   wraps the functions of the framework that have no hook of their own

Written against THUDM/slime 624b824 and radixark/miles 31f1ca9.
"""

from relibra.plugins.slime.installation import install

__all__ = ["install"]
