"""What a training recipe would give to Megatron, read without running it.

In:   a launcher (bash, Python) or a configuration (YAML) of an RL framework.
Out:  the effective settings under the names of Megatron's configuration, each with its origin, and a judgement.

    file -> launch (shell, python, merged) -> frameworks -> Recipe -> judge (the table of the agent)

Nothing in a recipe is executed: no command, no import, no interpolation that reads the environment.
"""
