"""The plug-in for ROLL: `worker_cls: relibra.integrations.roll.RLVRWorker` for a cluster of its configuration.

No file of ROLL changes. Workers of this plug-in are subclasses of ROLL's, and in their processes ROLL's two Megatron
strategies are replaced by subclasses. No expert moves: ROLL has optimizer state away while a pass begins, and sends and
stores weights by place.

    points      the attributes of ROLL that the plug-in relies on, checked at start
    batch       what a rank trains on, in the form of `relibra.steps`
    rollout     reports responses where they finish
    strategy    ROLL's Megatron strategies with an agent inside
    worker      ROLL's workers, which put these strategies in place

Written against ROLL 8eb27cc.
"""
