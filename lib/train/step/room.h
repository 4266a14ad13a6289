/* train/step - one training step: packs through a pipeline, the plan of recompute, optimizer, CUDA graphs, statistics;
 * its state in checkpoints.
 *
 * Used by: train/predict, train/run, train/sample, vfm-bench, vfm-ckpt, vfm-sample
 * Calls: base, ckpt, comm/coll, data/record, device/dev, device/ops, net, spec, train/job
 * Read first: trainer.h, pipeline.h, optim.h, state.h
 */
