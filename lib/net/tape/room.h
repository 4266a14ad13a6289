/* net/tape - the tape and the differentiable ops.
 *
 * Each op computes forward and records its adjoint; regions are recomputed or offloaded; weight gradients are
 * deferred.
 *
 * Used by: net/mesh, net/nn
 * Calls: base, device/dev, device/ops, spec/cost
 * Read first: tape.h, gops.h
 */
