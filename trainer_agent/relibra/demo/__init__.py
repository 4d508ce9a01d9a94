"""One real MoE RL job on a laptop: four trainers as two nodes, a rollout worker, a planner, run plain and balanced.

In:   a seed and a number of steps.
Out:  a table that compares both runs step by step, and a verdict: neutral and as balanced as planned, or not.

    task       prompts of mixed domains, and the reward that verifies an answer
    model      the small GPT, built, wrapped and replayed by megatron-core
    rollout    a worker process: generates, records routing, reports it
    trainer    four processes: RECOMPUTE and UPDATE of every step, plain or with an agent
    job        the RL loop between them
    services   `relibra up` as a child process
    verdict    the comparison, as a pure function
"""
