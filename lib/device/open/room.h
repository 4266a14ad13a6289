/* device/open - opens a device by name, with its compute stream: the CPU, a plugin (CUDA), or the simulated device.
 *
 * Used by: encoder/encode, train/job, vfm-bench, vfm-sample, vfm-train
 * Calls: base, device/cpu, device/dev, device/sim
 * Read first: open.h
 */
