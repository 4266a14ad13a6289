/* device/ops - the op table.
 *
 * The contract of each kernel: shapes, checks, cost; and the one list of cases, which is parity test, gradient
 * test and benchmark.
 *
 * Used by: comm, device, encoder/text, encoder/vae, net, train, vfm-bench, vfm-sample
 * Calls: base, device/dev, spec/model
 * Read first: ops.h, check.h, cases.h
 */
