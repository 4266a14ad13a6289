/* train/job - a rank and its configuration: ranks, device and mesh of this process; the configuration of a run, the
 * check that a plan fits it, and which of two networks its packs train.
 *
 * Used by: train, vfm-bench, vfm-ckpt, vfm-sample, vfm-train
 * Calls: base, comm, data/plan, data/record, device/open, device/ops, device/sim, io, net/diffusion, net/mesh,
 *   spec
 * Read first: context.h, config.h
 */
