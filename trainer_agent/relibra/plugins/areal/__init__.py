"""The plug-in for AReaL: `balanced(PPOTrainer)` in place of `PPOTrainer`.

No file of AReaL changes. The trainer, the engines of actor and reference, and the rollout's client are subclasses of
AReaL's. megatron's
`get_forward_backward_func` is wrapped in the module of the engine during a pass.

    points     the attributes of AReaL that the plug-in relies on, checked at start
    trainer    AReaL's trainer, with an actor and a reference that balance, and a rollout that reports its responses
    batch      the names of what a rank trains on, in the form of `relibra.steps`
    recovery   the optimizer's state in checkpoints, by expert
    engine     AReaL's Megatron engine of both with an agent inside
    response   the routing of a response
    rollout    AReaL's client of SGLang, which reports each response where it ends

AReaL does not replay routing: training routers choose anew. Written against AReaL 1.0.4.
"""
