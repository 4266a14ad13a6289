/* net/tape - the tape and the differentiable ops.
 *
 * Each op computes forward and records its adjoint; regions are recomputed or offloaded; weight gradients are
 * deferred.
 *
 * Used by: net, train
 * Calls: base, device/dev, device/ops, spec/cost, spec/model
 * Read first: tape.h, gops.h
 */
