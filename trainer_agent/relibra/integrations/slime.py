"""`--custom-megatron-init-path relibra.integrations.slime.init` turns on the plug-in `relibra.plugins.slime`."""

from typing import Any

from relibra.plugins.slime import install


def init(args: Any) -> None:
    """Balance the training of this process. slime calls this on every rank, before it builds the model.

    Args:
        args: the arguments of slime.

    Raises:
        InvalidInput, Unsupported: see `relibra.plugins.slime.installation.install`.
    """
    install(args, "slime")
