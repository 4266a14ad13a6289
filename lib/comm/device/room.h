/* comm/device - communicators for the memory of devices: over NCCL, staged through the host, or simulated.
 *
 * Used by: train/job, train/predict
 * Calls: base, comm/coll, comm/host, device/cuda, device/dev, device/ops, device/sim, io, spec/model
 * Read first: comm_dev.h, transport.h, comm_sim.h
 */
