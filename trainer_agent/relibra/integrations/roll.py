"""`worker_cls: relibra.integrations.roll.RLVRWorker`: ROLL's workers with an agent inside.

Importing this needs ROLL.
"""

from relibra.plugins.roll.worker import AgenticWorker, ReferenceWorker, RLVRWorker

__all__ = ["AgenticWorker", "RLVRWorker", "ReferenceWorker"]
