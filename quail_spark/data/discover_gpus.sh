#!/bin/sh
# Prints the GPUs of this machine as Spark wants them: {"name": "gpu", "addresses": ["0", "1"]}.
#
# A discovery script for spark.{driver,executor,worker}.resource.gpu.discoveryScript; `quail-spark gpu-script` prints its
# path. It needs a shell only. Where CUDA_VISIBLE_DEVICES is set the addresses are its entries (CUDA ignores those behind
# an invalid one), else the indices that nvidia-smi lists, else one for each of /dev/nvidia0, /dev/nvidia1, ...
set -u

if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
	found=$(printf '%s' "$CUDA_VISIBLE_DEVICES" | tr ',' '\n')
elif command -v nvidia-smi >/dev/null 2>&1; then
	if ! found=$(nvidia-smi --query-gpu=index --format=csv,noheader); then
		echo "discover_gpus.sh: nvidia-smi failed: $found" >&2
		exit 1
	fi
else
	found=
	count=0
	for device in /dev/nvidia[0-9]*; do
		[ -e "$device" ] || continue
		found="$found $count"
		count=$((count + 1))
	done
fi

addresses=
for address in $found; do
	case $address in -* | NoDevFiles) break ;; esac
	addresses="$addresses${addresses:+, }\"$address\""
done
printf '{"name": "gpu", "addresses": [%s]}\n' "$addresses"
