/* net/mesh - coordinates of ranks, and collectives as differentiable ops.
 *
 * Linear layers over tp, attention over cp, exchanges of experts.
 *
 * Used by: net/nn, train
 * Calls: base, comm/coll, comm/launch, device/dev, net/tape, spec/layout, spec/model
 * Read first: mesh.h, mops.h, tp_linear.h
 */
