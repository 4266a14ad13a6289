/* device/sim - the simulated device, which records launches and computes no data.
 *
 * - the rates of a machine, and the time that they give to kernels and collectives
 * - the memory of libraries
 * - simulated ranks
 *
 * Used by: comm/device, device/open, train/job, train/predict, vfm-bench, vfm-train
 * Calls: base, device/dev, device/ops, io, spec/model
 * Read first: sim.h, machine.h, estimate.h, world.h
 */
