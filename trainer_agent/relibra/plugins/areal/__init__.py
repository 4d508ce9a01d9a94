"""The plug-in for AReaL: `balanced(PPOTrainer)` in place of `PPOTrainer`.

No file of AReaL changes. The trainer, and the engines of actor and reference, are subclasses of AReaL's. megatron's
`get_forward_backward_func` is wrapped in the module of the engine during a pass.

    points     the attributes of AReaL that the plug-in relies on, checked at start
    trainer    AReaL's trainer, with an actor and a reference that balance
    recovery   the optimizer's state in checkpoints, by expert
    engine     AReaL's Megatron engine of both with an agent inside

AReaL does not replay routing, so all plans are forecasts. Written against AReaL 1.0.4.
"""
