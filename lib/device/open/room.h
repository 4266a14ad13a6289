/* device/open - opens the device that a name asks for.
 *
 * The CPU, a plugin (CUDA), or the simulated device; with its compute stream.
 *
 * Used by: encoder/encode, train/job, vfm-bench, vfm-sample, vfm-train
 * Calls: base, device/cpu, device/dev, device/sim
 * Read first: open.h
 */
