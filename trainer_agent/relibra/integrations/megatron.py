"""`balance`: one call in a training loop of one's own. See docs/integrations/plain-megatron.md."""

from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.own_loop import balance

__all__ = ["BalancedPasses", "balance"]
