"""What the settings of each RL framework mean to Megatron. One file per kind of framework.

In:   what a recipe starts (`Launch`).
Out:  settings under the names of Megatron's configuration (`Draft`), with the framework's defaults.
"""
