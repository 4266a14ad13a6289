/* train/run - the training run: the loop, its start and identity, phases, held-out data, samples, logs, trackers and
 * the page about runs.
 *
 * Used by: vfm-train
 * Calls: base, ckpt, comm/coll, comm/host, data/dataset, data/loader, data/plan, data/record, device/dev,
 *   device/ops, encoder/encode, encoder/vae, io, media/av, media/draw, net, spec, train
 * Read first: run.h, origin.h, identity.h
 */
