/* train/predict - prediction and measurement of steps.
 *
 * - simulated jobs, the dry run and its page, memory of a step, OOM hints
 * - measured steps on synthetic packs, dumps for comparisons
 *
 * Used by: train/run, vfm-bench, vfm-train
 * Calls: base, ckpt, comm/coll, comm/device, data/plan, device/cpu, device/dev, device/sim, io, media/draw, net,
 *   spec, train/job, train/step
 * Read first: simulate.h, dry_run.h, bench.h
 */
