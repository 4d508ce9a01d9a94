torchrun --nproc-per-node 8 pretrain_gpt.py --num-experts 64 --expert-model-parallel-size 8 \
    --tensor-model-parallel-size 2 --use-megatron-fsdp --moe-token-dispatcher-type alltoall --my-own-option 3
