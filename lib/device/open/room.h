/* device/open - opens the device that a name asks for.
 *
 * The CPU, a plugin (CUDA), or the simulated device; with its compute stream.
 *
 * Used by: train/job, encoder/encode, vfm-bench
 * Calls: base, device/cpu, device/dev, device/sim
 * Read first: open.h
 */
