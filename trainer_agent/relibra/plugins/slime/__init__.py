"""The plug-in for slime and its fork miles: `--custom-megatron-init-path relibra.integrations.slime.init`.

No file of a framework changes. These functions of its modules are wrapped in the training process:
`initialize_model_and_optimizer`, `get_data_iterator`, `forward_only`, `train`, `TensorBackuper.create`,
`get_forward_backward_func` and the one that saves weights of Hugging Face. `weight_updater` and `rollout_manager` of
the actor become properties. With `pack`, the function that splits a rollout, and `build_dp_schedule`, are wrapped in
the rollout manager.

    framework      what the plug-in relies on in slime and in miles, and what it refuses, by name
    batch          what a rank trains on, in the form of `relibra.steps`
    replay         what the framework's replays have for a forward, told to the agent before it
    training       the training process: an attached agent, planned passes, right names of weights
    other_models   the reference, a teacher and an old actor, which take turns in the modules of the actor
    rollout_schedule, rollout_packing
                   which micro-batch and rank each sample gets, chosen in the rollout manager
    installation   wraps the functions of the framework that have no hook of their own

Written against THUDM/slime 624b824 and radixark/miles 31f1ca9.
"""

from relibra.plugins.slime.installation import install

__all__ = ["install"]
