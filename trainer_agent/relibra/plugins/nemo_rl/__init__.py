"""The plug-in for NeMo-RL: `python -m relibra.plugins.nemo_rl SCRIPT ...`, and no file of NeMo-RL changes.

    __main__        runs a script of NeMo-RL with the plug-in installed
    launch          has the driver's policies start the worker of this plug-in
    points          the attributes of NeMo-RL that the plug-in relies on, checked at start
    configuration   what the plug-in takes from NeMo-RL's configuration and model
    worker          NeMo-RL's Megatron policy worker with an agent inside

Written against NVIDIA-NeMo/RL 7ea279a.
"""
