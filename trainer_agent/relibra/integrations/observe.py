"""`observe`: one call in any training loop, which shows what balancing would gain. See docs/integrations/observe.md."""

from relibra.plugins.observed_job import observe

__all__ = ["observe"]
