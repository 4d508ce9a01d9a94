"""The plug-in for verl: `actor_rollout_ref.model.external_lib=relibra.integrations.verl`, and nothing is patched.

    registration    registers the engine, in the processes that have verl's engines
    configuration   the section `relibra` of verl's configuration
    points          the attributes of verl that the plug-in relies on, checked at start
    engine          verl's Megatron engine with an agent inside
    driver          lets relibra deal the batches of a job, in the process of verl's trainers
    dealer          deals a batch as the planner advises
    trained_job     what the driver of a job asks its training processes
    driver_batch    the batches of verl's two trainers in one form
    dealing         the data-parallel rank and the mini-batch of every sequence, as verl reads them from an order

Written against verl 0.9.1.
"""

from relibra.plugins.verl.registration import install

__all__ = ["install"]
