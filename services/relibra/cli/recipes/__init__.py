"""What a training recipe would give to Megatron.

In:   a launcher (bash) or a configuration (YAML) of an RL framework.
Out:  the effective settings under the names of Megatron's configuration, each with its origin, and a judgement.

    file -> launch (shell, merged) -> frameworks -> Recipe -> judge (the table of the agent)

A launcher is run in restricted bash, which starts none of its programs and writes none of its files. Nothing else in a
recipe is executed: no import, and no interpolation that reads the environment. `bounded` limits time and memory.
"""
