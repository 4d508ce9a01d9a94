"""`worker_cls: relibra.integrations.roll.RLVRWorker`: ROLL's workers with an agent inside.

Importing this needs ROLL.
"""

from relibra.plugins.roll.worker import (
    AgenticPGWorker,
    AgenticWorker,
    InferWorker,
    ReferenceWorker,
    RLVRPGWorker,
    RLVRWorker,
)

__all__ = ["AgenticPGWorker", "AgenticWorker", "InferWorker", "RLVRPGWorker", "RLVRWorker", "ReferenceWorker"]
