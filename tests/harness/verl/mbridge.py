"""verl with `vanilla_mbridge=True`: mbridge builds the model, reads its weights, and exports and saves them."""

from pathlib import Path

from safetensors.torch import load_file
from verl.workers.engine import MegatronEngineWithLMHead

from harness import exports
from harness.trained import Result, differing, unequal
from harness.verl import engines
from harness.verl.plug_in import moving, with_plug_in
from harness.verl.trained_engine import TrainedEngine

NUM_UPDATES = 2


def mbridge(rank: int, folder: Path, planner: str) -> Result:
    """Train plain and with the plug-in, export after every reorder, and load a checkpoint after another one."""
    engine, alone = engines.build(MegatronEngineWithLMHead, folder / "model", vanilla_mbridge=True), TrainedEngine()
    for step in range(NUM_UPDATES):
        alone.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    with moving(rank, "mbridge", 2 * NUM_UPDATES + 2):
        engine, balanced = engines.build(with_plug_in(), folder / "model", vanilla_mbridge=True), TrainedEngine()
        of_file = load_file(folder / "model" / "model.safetensors")
        balanced.infer(engine, engines.batch(rank, 0))  # moves experts and trains nothing
        untrained = unequal(engines.exported(engine), of_file)
        compared = exports.compared(lambda: engines.exported(engine))
        balanced.outputs.clear()
        for step in range(NUM_UPDATES):
            balanced.step(engine, engines.batch(rank, step), engines.batch(rank, step))
        checkpoint = folder / "checkpoint of mbridge"
        engine.save_checkpoint(str(checkpoint))
        engines.update(engine, engines.batch(rank, NUM_UPDATES))
        engine.load_checkpoint(str(checkpoint), del_local_after_load=False)
    (saved,) = checkpoint.rglob("*.safetensors")
    return {
        "converter": type(engine.bridge).__module__,
        "num_exported": len(balanced.exports[-1]),
        "untrained": untrained,
        "compared": compared,
        "difference": balanced.differences(alone),
        "outcomes": balanced.outcomes,
        "saved": differing(load_file(saved), balanced.exports[-1]),
        "loaded": differing(engines.exported(engine), balanced.exports[-1]),
    }
