"""Plug-ins: relibra inside the engine of an RL framework, turned on by settings and without edits in the framework.

In:   a framework's own engine class, and the address of a planner.
Out:  the engine with an agent inside: it registers the job, runs its passes under plans, and exports right names.

    settings          the few settings of a plug-in; everything else is found out
    embedded          a planner that the job starts for itself
    nodes             which machines the ranks of an EP group run on
    model_sizes       the sizes of experts, measured in the built model
    points            the attributes of a framework that a plug-in relies on, checked at start
    planned_passes    the passes of one engine on their way to the planner
    logical_export    the export of a framework with each expert under its own name
    balanced_passes   the passes of one engine with an agent inside, and what leaves it
    attached_job      all of this together: a registered job with an agent in its model
    verl              verl's Megatron engine
    slime             the training processes of slime and miles
    areal             AReaL's Megatron engine of the actor
    ms_swift          ms-swift's Megatron trainer of GRPO
    nemo_rl           NeMo-RL's Megatron policy worker
    roll              ROLL's Megatron strategies
    skyrl             SkyRL's Megatron policy worker

Ray takes the methods of an actor's class when it loads the class, before a framework calls a plug-in there, and never
calls a method that replaces one later. So a plug-in brings a subclass, or replaces functions of modules.
"""
