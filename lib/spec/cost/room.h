/* spec/cost - what a step keeps and what a job yields.
 *
 * Saved activations, the plan of what blocks keep for their backward, goodput with failures, stragglers, peaks of
 * devices.
 *
 * Used by: train and its predictions
 * Calls: spec/model
 * Read first: saved.h, keep_plan.h, goodput.h
 */
