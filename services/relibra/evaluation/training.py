"""A simulated training job: model, machines, and how it trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relibra.evaluation.constants import GRADIENT_BYTES_PER_WEIGHT_BYTE, Constants, middles, ranges_of
from relibra.evaluation.dispatcher import DispatchDtype, Dispatcher
from relibra.evaluation.hardware import Hardware
from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.range import Range
from relibra.planning.cost import WEIGHT_TRANSFERS, CostModel
from relibra.planning.job import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A simulated training job. `Training.of` takes its constants from a preset of machines."""

    model: ModelShape
    hardware: Hardware
    cluster: Cluster
    dispatcher: Dispatcher
    constants: Constants
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """The ranges of the constants that are uncertain, by name."""
    dispatch_dtype: DispatchDtype | None = None
    """The numbers in which tokens travel; by default those of the measured cost model, if it says so, or bf16."""
    sequence_length: float = 8192.0
    """The tokens of a typical sequence; they decide what attention scores cost."""
    num_steps: float = 100.0
    """The steps that the job trains. They share the cost of its first placement."""

    @classmethod
    def of(
        cls, model: ModelShape, hardware: Hardware, cluster: Cluster, dispatcher: Dispatcher, **others: Any
    ) -> "Training":
        """Return a job with the constants of its machines and dispatcher, in the middle of their ranges."""
        ranges = ranges_of(hardware, dispatcher)
        return cls(
            model=model,
            hardware=hardware,
            cluster=cluster,
            dispatcher=dispatcher,
            constants=middles(ranges),
            ranges=ranges,
            **others,
        )

    @property
    def token_size_bytes(self) -> float:
        """The bytes that dispatch and combine of one token move together, as a mean over passes."""
        measured = self.hardware.measured
        if self.dispatch_dtype is None and measured is not None and measured.token_size_bytes:
            return measured.token_size_bytes
        dtype = self.dispatch_dtype or DispatchDtype.BF16
        return dtype.token_size_bytes(self.model.hidden_size)

    @property
    def planning_cost(self) -> CostModel:
        """The cost model that planning gets. The time that a transfer takes from attention counts as not hidden."""
        constants, model = self.constants, self.model
        forwards = WEIGHT_TRANSFERS - GRADIENT_BYTES_PER_WEIGHT_BYTE
        taken = forwards * constants.weight_sm_share + constants.return_weights * constants.gradient_sm_share
        return replace(
            self.hardware.measured or _computed(model, constants),
            token_size_bytes=self.token_size_bytes,
            intra_node_bytes_per_us=constants.weight_bytes_per_us,
            inter_node_bytes_per_us=constants.dispatch_across_bytes_per_us,
            hidden_transfer_share=max(0.0, 1 - taken / WEIGHT_TRANSFERS),
            host_us=constants.host_us,
            sends_once_per_node=self.dispatcher.sends_once_per_node,
        )


def _computed(model: ModelShape, constants: Constants) -> CostModel:
    """Return the times of one expert: it reads its weights once and computes every token. Planning ignores tiles."""
    read_us = model.expert_weight_size_bytes / constants.hbm_bytes_per_us
    us_per_token = 2 * model.expert_parameters / constants.flop_per_us
    return CostModel(expert_tokens=(0.0, 1024.0), expert_us=(read_us, read_us + 1024 * us_per_token))
