/* device/ops - the op table: the contract of each kernel (shapes, checks, cost), and the one list of cases for parity
 * tests, gradient tests and benchmarks.
 *
 * Used by: comm, device, encoder/image, encoder/text, encoder/vae, net, train, vfm-bench
 * Calls: base, device/dev, spec/model
 * Read first: ops.h, check.h, cases.h
 */
