"""One real MoE RL job on a laptop: four trainers as two nodes, a rollout worker and a planner, run plain and balanced.

In:   a seed and a number of steps.
Out:  a table that compares both runs step by step, and whether the balanced run was neutral and as balanced as planned.

    task       prompts of mixed domains, and the reward that verifies an answer
    model      the small GPT, built, wrapped and replayed by megatron-core
    rollout    a worker process that generates, records routing and reports it
    trainer    four processes that run RECOMPUTE and UPDATE of every step, plain or with an agent
    worker     the child processes, and the pipes to them
    job        the RL loop that drives the worker and the trainers
    services   `relibra up` as a child process
    comparison both runs side by side, as pure functions

    megatron_on_cpu   shims that let megatron-core run without CUDA; tests and benchmarks use them too
"""
