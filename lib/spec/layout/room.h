/* spec/layout - the parallel layout of a job.
 *
 * - parallel degrees, pipeline schedules and the packs in flight
 * - patches of latents as tokens, the rows of tokens of each rank
 * - packs of samples in host memory
 *
 * Used by: data/loader, data/plan, net, train, vfm-bench, vfm-curate, vfm-pack, vfm-train
 * Calls: base, io, spec/model
 * Read first: parallel.h, schedule.h, tokens.h, pack.h
 */
