"""verl with `vanilla_mbridge=True`: mbridge builds the model, reads its weights, and exports and saves them."""

from harness import tiny_qwen3_moe
from harness.plugin_contract import AWAY, Rank, check_equal, check_moved, check_nothing_moves, moving, set_environment
from harness.trained import NUM_EXPORTED, differing, unequal
from harness.verl import engines, training

NUM_UPDATES = 2


def S5_mbridge_exports_saves_and_loads_every_expert_under_its_name_after_reorders(at: Rank) -> None:
    """All is that of verl alone, and a checkpoint is loaded after another reorder."""
    alone = training.train(at, training.build(at, balanced=False, vanilla_mbridge=True), num_updates=NUM_UPDATES)
    set_environment(AWAY, "mbridge")
    with moving(at, 2 * NUM_UPDATES + 2) as outcomes:
        engine = training.build(at, balanced=True, vanilla_mbridge=True)
        assert type(engine.bridge).__module__ == "mbridge.models.qwen3moe"
        of_file = tiny_qwen3_moe.written(at.folder / "model")
        engines.inferred(engine, engines.batch(at.number, 0))  # moves experts and trains nothing
        assert unequal(engines.exported(engine), of_file) == []
        check_nothing_moves(lambda: engines.exported(engine))
        trained = training.train(at, engine, num_updates=NUM_UPDATES)
        checkpoint = at.folder / "checkpoint of mbridge"
        engine.save_checkpoint(str(checkpoint))
        engines.update(engine, engines.batch(at.number, NUM_UPDATES))
        engine.load_checkpoint(str(checkpoint), del_local_after_load=False)
    check_moved(outcomes)
    check_equal(trained, alone)
    assert len(trained.exports[-1]) == NUM_EXPORTED
    (saved,) = checkpoint.rglob("*.safetensors")
    assert differing(tiny_qwen3_moe.written(saved.parent), trained.exports[-1]) == []
    assert differing(engines.exported(engine), trained.exports[-1]) == []
