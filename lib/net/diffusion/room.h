/* net/diffusion - the diffusion transformers.
 *
 * A backbone and a block for all architectures; EDM and flow matching; solvers, guidance, samplers.
 *
 * Used by: train, vfm-bench, vfm-sample
 * Calls: base, comm/coll, device/dev, device/ops, net, spec
 * Read first: model.h, block.h, diffusion.h, sampler.h
 */
