"""`worker_extension_cls_fqn=relibra.integrations.nemo_rl.Worker`: NeMo-RL's policy worker with an agent inside.

Importing this needs NeMo-RL.
"""

from relibra.plugins.nemo_rl.worker import Worker

__all__ = ["Worker"]
