#!/bin/bash
# One round of a batch job, on the machine with the device: unpack a spool, do what it asks for, pack the results.
#
#   tar -C spool -cf asked.tar .                          # where `optimize --runner spool:spool` runs
#   benchmarks/spool_round.sh asked.tar answered.tar --limit 8m
#   tar -C spool -xf answered.tar                         # there again: the run goes on by itself
#
# Further words go to `kernelwright worker`. Exit status: the worker's. The results are packed whatever it is, so a job
# that ran out of time loses the request that it was at and nothing else. SPOOL_WORK: a folder to keep between rounds,
# which saves unpacking what is there; else a new one is made and removed.
set -u
asked=$1
answered=$2
shift 2
python=${PYTHON:-python3}
work=${SPOOL_WORK:-}
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work" && tar -C "$work" -xf "$asked" || exit 2
"$python" -m kernelwright worker --spool "$work" --until-idle "$@"
status=$?
tar -C "$work" -cf "$answered.part" results workers && mv "$answered.part" "$answered" || exit 2
exit $status
