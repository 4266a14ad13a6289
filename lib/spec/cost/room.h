/* spec/cost - saved activations and goodput.
 *
 * Saved activations, the plan of what blocks keep for their backward, goodput with failures, stragglers, peaks of
 * devices.
 *
 * Used by: device/cuda, train, vfm-bench, vfm-train
 * Calls: spec/model
 * Read first: saved.h, keep_plan.h, goodput.h
 */
