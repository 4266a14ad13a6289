/* train/job - a rank and its configuration: ranks, device and mesh of this process; the configuration of a run, and the
 * check that a plan fits it.
 *
 * Used by: train, vfm-bench, vfm-ckpt, vfm-sample, vfm-train
 * Calls: base, comm, data/plan, data/record, device/open, device/ops, device/sim, io, net/diffusion, net/mesh,
 *   spec
 * Read first: context.h, config.h
 */
