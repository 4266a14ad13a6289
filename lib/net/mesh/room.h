/* net/mesh - coordinates of ranks, and collectives as differentiable ops: linear layers over tp, attention over cp,
 * exchanges of experts.
 *
 * Used by: net/diffusion, net/nn, train, vfm-train
 * Calls: base, comm/coll, device/dev, device/ops, net/tape, spec/layout, spec/model
 * Read first: mesh.h, mops.h, tp_linear.h
 */
