/* net/nn - parameters and layers.
 *
 * A parameter is described once; sharding of weights, gradients and state follows.  Linear layers, attention,
 * experts, fp8 scales, frozen weights in other dtypes and in host memory.
 *
 * Used by: net/diffusion, train
 * Calls: base, comm/coll, device/dev, device/ops, io, net/mesh, net/tape, spec
 * Read first: param.h, layers.h
 */
