/* train/sample - sampling: files of prompts, the networks of vfm-sample, batches of prompts to videos and records.
 *
 * Used by: train/run, vfm-sample, vfm-train
 * Calls: base, ckpt, comm/coll, data/dataset, data/record, device/dev, device/ops, encoder, io, media/av, net,
 *   spec, train/job, train/step
 * Read first: sampling.h, prompts.h, sample_net.h
 */
