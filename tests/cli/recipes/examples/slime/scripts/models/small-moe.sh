NLAYERS=4
arr=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < 1 )); then arr+=(0); else arr+=(1); fi
done
printf -v MOE_LAYER_FREQ "[%s]" "$(IFS=', '; echo "${arr[*]}")"
MODEL_ARGS=(
   --num-layers $NLAYERS
   --moe-layer-freq "$MOE_LAYER_FREQ"
   --moe-shared-expert-intermediate-size $((64 * 2))
   --moe-token-dispatcher-type alltoall
   --moe-permute-fusion
)
