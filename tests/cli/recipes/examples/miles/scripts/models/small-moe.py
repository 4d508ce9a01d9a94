import os


def model_args(nlayers=None):
    nlayers = nlayers if nlayers is not None else int(os.environ.get("MODEL_ARGS_NUM_LAYERS") or 4)
    return f"--num-layers {nlayers} --moe-permute-fusion --moe-token-dispatcher-type flex "
