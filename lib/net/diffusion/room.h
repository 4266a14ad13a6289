/* net/diffusion - the diffusion transformers.
 *
 * A backbone and a block for all architectures; EDM and flow matching; solvers, guidance, samplers.
 *
 * Used by: train
 * Calls: base, device/dev, net/mesh, net/nn, net/tape, spec
 * Read first: model.h, block.h, diffusion.h, sampler.h
 */
