"""The plug-in for verl: `actor_rollout_ref.model.external_lib=relibra.integrations.verl`.

No file of verl changes. verl's registry hands out the engines of this plug-in. `TrainingWorker.__init__` is wrapped
until it has run once. In the driver, `fit` and `_balance_batch` of verl's trainer are wrapped, and
verl's `TrainingWorkerConfig` takes the settings along to the workers of the critic. `prepare_micro_batches` is wrapped
during a pass, and the two functions that copy weights to the host and back are wrapped for good. In every engine, the
two methods are wrapped with which its checkpoint manager writes and loads through a bridge.

    registration    registers the engines, in the processes that have verl's engines
    configuration   the section `relibra` of verl's configuration
    points          the attributes of verl that the plug-in relies on, checked at start
    sent            brings the plug-in and its settings to the workers of the critic
    engine          verl's Megatron engines with an agent inside
    host_copies     copies of the weights that verl's decoupled trainers write back by place
    driver          has a step planned from its batch, and lets relibra deal it, in the process of verl's trainer
    dealer          deals a batch as the planner advises
    trained_job     what the driver of a job asks its training processes
    batch           what a rank trains on, in the form of `relibra.steps`
    driver_batch    what the driver reads of a batch
    dealing         the data-parallel rank and the mini-batch of every sequence, as verl reads them from an order

Written against verl 0.9.1.
"""

from relibra.plugins.verl.registration import install

__all__ = ["install"]
