/* train/run - the training run.
 *
 * The loop, what a run begins from and its identity, phases in turn, held-out data, samples, logs and the page
 * about runs; the networks of sampling.
 *
 * Used by: vfm-train, vfm-sample
 * Calls: base, ckpt, comm/host, data/dataset, data/loader, data/plan, data/record, encoder/vae, io, media/av,
 *   media/draw, net/diffusion, net/mesh, net/nn, spec/cost, spec/layout, train
 * Read first: run.h, origin.h, identity.h, sample_net.h
 */
