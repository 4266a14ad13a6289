/* train/job - a rank and its configuration.
 *
 * Ranks, device and mesh of this process; the configuration of a run, and whether a plan fits it.
 *
 * Used by: vfm-train, vfm-sample, vfm-bench
 * Calls: base, comm, data/plan, data/record, device/open, device/sim, io, net/diffusion, net/mesh, net/tape, spec
 * Read first: context.h, config.h
 */
